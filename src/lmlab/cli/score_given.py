"""`lmlab score RUN --given PREFIX …` and `--conditional`: continuations given what comes before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmlab.cli.output import one_line, print, print_json_list
from lmlab.cli.score_source import from_columns
from lmlab.cli.texts import Texts, single_text, texts_from, with_lines
from lmlab.core.errors import UserError
from lmlab.data.readers import Example

if TYPE_CHECKING:
    from lmlab.language_model import LanguageModel
    from lmlab.scoring.conditional import ConditionalScore


def continuations(file: str | None, texts: list[str], prefix: str | None, errors: str) -> Texts:
    """Texts that are each given a prefix: one for all, or that of their line in a file."""
    found = texts_from(file, texts, errors, instead="--text")
    if prefix is not None:
        found.reader = (
            replace(line, text=single_text(line, found.name), condition=prefix)
            for line in found.reader
        )
        return found
    if file is None:
        raise UserError("--conditional reads prefixes and continuations from a FILE; name it.")
    if file == "-":
        found.reader = map(from_columns, found.reader)
    found.reader = (_with_prefix(line, file) for line in found.reader)
    return found


def _with_prefix(line: Example, file: str) -> Example:
    if line.text and line.condition is None:
        raise UserError(
            f"{file} holds single texts; give a .tsv file with a prefix, a tab and a "
            "continuation a line, or --given with one prefix for all."
        )
    return line


def given_scores(
    model: LanguageModel, texts: Texts, **options: Any
) -> Iterator[tuple[int | None, ConditionalScore]]:
    """Line and score of each continuation."""

    def scored(examples: Iterator[Example]) -> Iterator[ConditionalScore]:
        pairs = ((example.condition or "", example.text) for example in examples)
        return model.score_given(pairs, **options)

    for line, score in with_lines(texts.examples, scored):
        assert score is not None, "examples have text"
        yield line.line, score


def print_continuations(
    scores: Iterable[tuple[int | None, ConditionalScore]],
    *,
    as_json: bool,
    per_token: bool,
    mean: bool,
) -> None:
    """A line for each continuation, or one JSON document."""
    if as_json:
        print_json_list(
            {"line": line, **score.as_dict(), "mean": score.mean} for line, score in scores
        )
        return
    from lmlab.diagnostics.wording import KINDS_EXPLAINED, convention_words, counted

    told: set[str] = set()
    for _, score in scores:
        unit = "nats in the mean" if mean else "nats"
        figure = score.mean if mean else score.total
        shown = one_line(f"{score.prefix} |{score.continuation}")
        print(f"{figure:.4f} {unit}\t{counted(score.tokens, 'token')}\t{shown}")
        for token in score.per_token if per_token else ():
            print(f"\t{token.log_prob:.4f}\t{token.start}-{token.end}\t{token.token}")
        explained = f"{score.kind} ({KINDS_EXPLAINED[score.kind]})"
        told.add(f"kind {explained}; {convention_words(score.convention)}")
    for sentence in sorted(told):
        print(sentence)
