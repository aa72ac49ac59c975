"""The verb that scores texts by several models: score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from lmlab.core.errors import UserError
from lmlab.core.options import Option, as_keywords, takes
from lmlab.verbs.scoring import ScoreOptions

if TYPE_CHECKING:
    from lmlab.data.readers import Example
    from lmlab.scoring.score_tables import ScoredText, ScoreTable
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import GivenModel


@dataclass(frozen=True, kw_only=True)
class WordOptions:
    """What the words of a text are."""

    words_by: Annotated[
        str | re.Pattern[str] | Iterable[str | Sequence[str]],
        Option(
            "Words: between spaces; a second column of FILE, or the lines of another file, with "
            "spaces between words; matches of a regular expression.",
            metavar="spaces|column|file:PATH|regex:PATTERN",
        ),
    ] = "spaces"
    no_end: Annotated[
        bool, Option("Leave out the rows of the end-of-sequence token in tables.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class ScoreTableOptions(WordOptions, ScoreOptions):
    """How several models score texts, and what their words are."""


@takes(ScoreTableOptions)
def score_stream(
    runs: Sequence[GivenModel], texts: Iterable[str], options: ScoreTableOptions
) -> Iterator[ScoredText]:
    """Score a stream of texts by several models, one after the other, in bounded memory."""
    from lmlab.core.untrusted_input import check_texts, checked_texts
    from lmlab.data.readers import Example
    from lmlab.scoring.source_scoring import pair_with_sources

    check_texts(texts, "score")
    models = models_by_name(runs)
    checked = checked_texts(texts)
    if options.sources is None:
        examples = (Example(text) for text in checked)
    else:
        check_texts(options.sources, "score", noun="source")
        pairs = pair_with_sources(checked_texts(options.sources), checked)
        examples = (Example(pair.text, condition=pair.source) for pair in pairs)
    return _scored_texts(models, examples, options)


def _scored_texts(
    models: Mapping[str, LanguageModel], examples: Iterator[Example], options: ScoreTableOptions
) -> Iterator[ScoredText]:
    from lmlab.scoring.score_tables import ScoredText
    from lmlab.scoring.scoring_options import ScoringOptions
    from lmlab.scoring.word_segmentation import make_segmentation

    segmentation = make_segmentation(options.words_by)
    of_scorers = as_keywords(options, ScoringOptions)
    scored = score_examples(models, examples, per_token=options.per_token, **of_scorers)
    for line, scores in enumerate(scored, 1):
        text = next(iter(scores.values())).text
        yield ScoredText(
            text=text,
            line=line,
            scores=scores,
            spans=segmentation.spans(text, line),
            with_end=not options.no_end,
        )


@takes(ScoreTableOptions)
def score(
    runs: Sequence[GivenModel], texts: Iterable[str], options: ScoreTableOptions
) -> ScoreTable:
    """Score texts by one or several models: log-probabilities, surprisal by word, tables.

    The words are those of the text, whatever the tokenizers: `words_by` is `spaces`, `file:PATH`
    (the words of each text, a line each), `regex:PATTERN`, or a list with the words of each text.
    `no_end` leaves the end of the sequence out of the rows.

    >>> table = lmlab.score(["runs/window", "runs/ngram"], ["the cat sleeps"], no_end=True)
    >>> [(row.model, row.word) for row in table.rows()][2:4]
    [('window', 'sleeps'), ('ngram', 'the')]
    >>> [list(row) for row in table.wide_rows()][0]
    ['line', 'position', 'word', 'start', 'end', 'window', 'ngram', 'flags']
    """
    from lmlab.scoring.score_tables import ScoreTable

    models = models_by_name(runs)
    scored = score_stream(list(models.values()), texts, **as_keywords(options))
    return ScoreTable(models=tuple(models), texts=tuple(scored))


def models_by_name(
    runs: Sequence[GivenModel], *, language: str | None = None
) -> dict[str, LanguageModel]:
    """Loaded models by the names that tables call them; `language` is that of the texts."""
    from lmlab.scoring.minimal_pairs import unique_model_names
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import check_list, load

    check_list(runs, "score")
    models = [
        run if isinstance(run, LanguageModel) else load(run, language=language) for run in runs
    ]
    if not models:
        raise UserError("no model given; name at least one.")
    return dict(zip(unique_model_names([model.path for model in models]), models, strict=True))


def score_examples(
    models: Mapping[str, LanguageModel],
    examples: Iterator[Example],
    *,
    per_token: bool,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Scores of each example by model, given its source if the first example has one."""
    from lmlab.scoring.side_by_side import score_side_by_side

    first = next(examples, None)
    if first is None:
        return
    scorers = {
        name: _example_scorer(
            model, name if len(models) > 1 else "", first, per_token=per_token, options=options
        )
        for name, model in models.items()
    }
    yield from score_side_by_side(scorers, chain([first], examples))


def _example_scorer(
    model: LanguageModel, name: str, first: Example, *, per_token: bool, options: Mapping[str, Any]
) -> Any:
    """What scores examples by one model, made before any is scored, so that errors come first."""
    try:
        if first.condition is not None:
            of_pairs = model.source_scorer(**options)
            return lambda texts: of_pairs.score_examples(texts, per_token)
        scorer = model.scorer(**options)
        return lambda texts: scorer.score(map(_single_text, texts), per_token)
    except UserError as error:
        if not name:
            raise
        raise UserError(f"{name}: {error}") from error


def _single_text(example: Example) -> str:
    if example.condition is not None:
        raise UserError(f"line {example.line} has a source, and the first text has none.")
    return example.text
