"""`lmlab score RUN... [FILE | - | TEXT...]`: log-probabilities, surprisal and tables of words."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.arguments import split_leading_models
from lmlab.cli.large_files import OutOption, file_of, take_file_options, write_file
from lmlab.cli.options import JsonOption, LanguageOption, NoVerify, RawOption
from lmlab.cli.output import one_line, print, print_json_list, warn
from lmlab.cli.score_continuations import (
    parse_columns,
    print_token_scores,
    read_continuations,
    write_continuations,
)
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    STDIN,
    FileOption,
    TextInput,
    TextOption,
    file_or_texts,
    process_lines,
    read_texts,
    require_single_text,
)
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.data.readers import Example
from lmlab.verbs import large_files, scoring
from lmlab.verbs import score_tables as verbs

if TYPE_CHECKING:
    from lmlab.core.score import Score
    from lmlab.scoring.score_tables import ScoredText
    from lmlab.scoring.word_segmentation import ColumnWords, Segmentation
    from lmlab.verbs.language_model import LanguageModel


@terminal(verbs.score, scoring.score_given, large_files.score_file, loads=True)
def score(
    run: Annotated[
        str, typer.Argument(metavar="RUN...", help="Folders of trained runs, before the texts.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | TEXT...]",
            help="A file with one text per line (for translation models a source, a tab and "
            "a text), - for standard input, or texts themselves.",
        ),
    ] = None,
    text: TextOption = None,
    named_file: FileOption = None,
    per_token: Annotated[bool, typer.Option("--per-token", help="Also print each token.")] = False,
    per_word: Annotated[bool, typer.Option("--per-word", help="Also print each word.")] = False,
    csv: Annotated[
        bool,
        typer.Option(
            "--csv",
            help="Print surprisal by word with line and character offsets, as CSV; a word that a "
            "spreadsheet takes for a formula has an apostrophe before it, unless --raw is given.",
        ),
    ] = False,
    wide: Annotated[
        bool,
        typer.Option(
            "--wide", help="Print CSV with a row per word and a column per model, in bits."
        ),
    ] = False,
    as_json: JsonOption = False,
    given: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Score the texts as continuations of this one."),
    ] = None,
    conditional: Annotated[
        bool,
        typer.Option(
            "--conditional", help="Score continuations: FILE has a prefix and one on each line."
        ),
    ] = False,
    out: OutOption = None,
    language: LanguageOption = None,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
    *,
    sources: list[str] | None,
    end: bool,
    separator: str | None,
    mean: bool,
    **options: Any,
) -> None:
    form = PrintedForm(
        as_json=as_json,
        per_token=per_token,
        per_word=per_word,
        csv=csv or wide,
        wide=wide,
        mean=mean,
        raw=raw,
    )
    continuing = given is not None or conditional
    check_form(form, continuing=continuing, end=end, separator=separator, sources=sources)
    more_runs, others = split_leading_models(arguments or ())
    of_file = take_file_options(options, out, errors)
    if out is not None:
        refused = {"--source": sources, "--per-token": per_token, "--csv": form.csv}
        refused |= {"--given and --conditional": continuing}
        path = file_of(others, text, named_file, refused)
        of_file |= {"per_word": per_word, "mean": mean, "language": language, **options}
        write_file(large_files.score_file, [run, *more_runs], path, out, as_json=as_json, **of_file)
        return
    file, given_texts = file_or_texts(others, text, named_file)
    if continuing:
        if more_runs:
            raise UserError("continuations are scored by one run; leave out the others.")
        texts = read_continuations(file, given_texts, given, errors)
        options = {k: v for k, v in options.items() if k not in ("words_by", "no_end")}
        write_continuations(
            run,
            texts,
            as_json=as_json,
            per_token=per_token,
            end=end,
            separator=separator,
            mean=mean,
            language=language,
            **options,
        )
        return
    words = read_words(options.pop("words_by"), with_end=not options.pop("no_end"))
    texts = read_texts(file, given_texts, errors, instead="--text", plain=words.column is not None)
    if words.column is not None:
        texts.reader = words.column.texts(texts.reader, texts.name)
    if sources:
        add_sources(texts, given_texts, sources)
    # Texts of the command line form no stream: each starts anew.
    models = verbs.models_by_name([run, *more_runs], language=language)
    write_scores(models, texts, form, words, carry=file is not None, mean=mean, **options)


@dataclass(frozen=True, kw_only=True)
class PrintedForm:
    """How scores are printed."""

    as_json: bool
    per_token: bool
    per_word: bool
    csv: bool
    wide: bool
    mean: bool
    raw: bool


def check_form(
    form: PrintedForm,
    *,
    continuing: bool,
    end: bool,
    separator: str | None,
    sources: list[str] | None,
) -> None:
    """A UserError for options that exclude each other."""
    if form.csv and (form.as_json or form.per_token or form.mean):
        raise UserError("--csv does not apply to --json, --per-token or --mean; remove them.")
    if continuing and (form.csv or form.per_word):
        raise UserError("words are scored in whole texts; leave out --csv and --per-word.")
    if not continuing and (end or separator is not None):
        raise UserError("--end and --separator are for continuations; give --given a prefix.")
    if continuing and sources:
        raise UserError(
            "--given and --conditional do not apply to texts with a source; remove them."
        )


@dataclass(frozen=True, kw_only=True)
class Words:
    """What the words of the texts are."""

    segmentation: Segmentation
    column: ColumnWords | None
    """The same, if it is read from the texts' own lines."""
    with_end: bool


def read_words(words_by: Any, *, with_end: bool) -> Words:
    """The words that are wanted, by a second column of the texts too."""
    from lmlab.scoring.word_segmentation import ColumnWords, make_segmentation

    column = ColumnWords() if words_by == "column" else None
    segmentation = make_segmentation(words_by) if column is None else column
    return Words(segmentation=segmentation, column=column, with_end=with_end)


def write_scores(
    models: Mapping[str, LanguageModel],
    texts: TextInput,
    form: PrintedForm,
    words: Words,
    *,
    carry: bool,
    **options: Any,
) -> None:
    """Score texts and print them."""
    unknown = count_unknown_words(texts, models)
    with texts.progress_bar("scoring", unit="tokens") as progress:
        by_token = form.per_token or form.per_word or form.csv or form.as_json
        scored = score_texts(
            models, texts, words, per_token=by_token, carry=carry, progress=progress, **options
        )
        if form.as_json:
            print_json_list(
                _record(text, name, form.per_word, several=len(models) > 1)
                for text in scored
                for name in models
            )
        elif form.csv:
            from lmlab.scoring.score_tables import write_word_csv

            shared = SharedWords()
            write_word_csv(shared.counting(scored), sys.stdout, wide=form.wide, raw=form.raw)
            shared.warn("flags" if form.wide else "shared")
        else:
            print_scores(scored, models, per_token=form.per_token, per_word=form.per_word)
    texts.warn_empty_lines()
    texts.warn_unknown_words()
    unknown.warn()
    if texts.size is not None and sys.stderr.isatty():
        print(f"{texts.name}: {texts.report.summary()}", file=sys.stderr)


def _record(text: ScoredText, model: str, per_word: bool, *, several: bool) -> dict[str, Any]:
    """JSON record of a score: as `Score.as_dict`, without its slow copying."""
    score = text.scores[model]
    record = ({"model": model} if several else {}) | vars(score)
    record["convention"] = vars(score.convention)
    record["per_token"] = [vars(token) for token in score.per_token]
    record["mean"] = score.mean
    if per_word:
        record["per_word"] = [asdict(word) for word in text.words[model]]
    return record


class SharedWords:
    """Counts the words that share a token with another one, by model."""

    def __init__(self) -> None:
        self.words: Counter[str] = Counter()
        self.shared: Counter[str] = Counter()

    def counting(self, texts: Iterable[ScoredText]) -> Iterator[ScoredText]:
        """Pass texts through, counting each."""
        for text in texts:
            yield text
            for model, words in text.words.items():
                self.words[model] += len(words)
                self.shared[model] += sum(word.shared for word in words)

    def warn(self, column: str) -> None:
        """Say of each model how many words have no surprisal of their own alone."""
        for model, count in (+self.shared).items():
            warn(
                f"{model}: {count:,} of {self.words[model]:,} words share a token with another "
                f"word, which counts towards the one it ends in; see the column {column}"
            )


def print_scores(
    texts: Iterable[ScoredText], models: Iterable[str], *, per_token: bool, per_word: bool
) -> None:
    """Print a line per text and model, its tokens or words below it, and the totals last."""
    from lmlab.core.score import ScoreTotals
    from lmlab.scoring.formatting import describe_summary

    totals = {model: ScoreTotals() for model in models}
    several = len(totals) > 1
    for text in texts:
        for model, score in text.scores.items():
            print(f"{model}\t{_score_line(score)}" if several else _score_line(score))
            if (per_token or per_word) and score.tokens and not score.per_token:
                print("\tthe text is scored as a whole, and its tokens have no scores of their own")
            elif per_token or per_word:
                _print_parts(text, model, per_token=per_token, per_word=per_word)
            totals[model].add(score)
    for model, of_model in totals.items():
        summary = describe_summary(of_model.summary())
        print(f"{model}: {summary}" if several else summary)


def _score_line(score: Score) -> str:
    from lmlab.scoring.formatting import format_count

    source = "" if score.source is None else f"{score.source} | "
    unit = "nats in the mean" if score.convention.mean else "nats"
    per_token_loss = f"{0.0 - score.mean:.4f} nats/token"
    tokens = format_count(score.tokens, "token")
    line = one_line(f"{source}{score.text}")
    return f"{score.figure:.4f} {unit}\t{tokens}\t{per_token_loss}\t{line}"


def _print_parts(text: ScoredText, model: str, *, per_token: bool, per_word: bool) -> None:
    if per_token:
        tokens = text.scores[model].per_token
        print_token_scores((t.token, t.start, t.end, t.log_prob) for t in tokens)
    if per_word:
        print_token_scores((w.word, w.start, w.end, w.log_prob) for w in text.words[model])


def add_sources(texts: TextInput, given_texts: list[str], sources: list[str]) -> None:
    """Assign the sources to the texts of the command line, by number."""
    if not given_texts:
        raise UserError(
            "--source goes with --text; in a FILE a source stands before its text, with a tab "
            "between them."
        )
    from lmlab.scoring.source_scoring import pair_with_sources

    pairs = zip(texts.reader, pair_with_sources(sources, given_texts), strict=True)
    texts.reader = (replace(line, condition=pair.source) for line, pair in pairs)


class UnknownWordsOfModels:
    """Unknown words of several models, counted while the texts are read."""

    def __init__(self, models: Mapping[str, LanguageModel]) -> None:
        from lmlab.data.unknown_words import UnknownWords

        self.counters = {name: UnknownWords(model.tokenizer) for name, model in models.items()}

    def counting(self, lines: Iterable[Example]) -> Iterator[Example]:
        """Pass lines through, counting each."""
        for line in lines:
            for counter in self.counters.values():
                counter.add(line.text)
            yield line

    def warn(self) -> None:
        """Warn of each model to which more than a few per cent of the words are unknown."""
        for name, counter in self.counters.items():
            if sentence := counter.warning():
                warn(f"{name}: {sentence}")


def count_unknown_words(
    texts: TextInput, models: Mapping[str, LanguageModel]
) -> UnknownWordsOfModels:
    """Start counting the unknown words of texts, those of a single model's sources too."""
    if len(models) > 1:
        of_models = UnknownWordsOfModels(models)
        texts.reader = of_models.counting(texts.reader)
        return of_models
    [model] = models.values()
    texts.count_unknown_words(model.tokenizer, model.model.effective_source_tokenizer)
    return UnknownWordsOfModels({})


def score_texts(
    models: Mapping[str, LanguageModel],
    texts: TextInput,
    words: Words,
    *,
    per_token: bool,
    **options: Any,
) -> Iterator[ScoredText]:
    """Scores of texts with their line numbers, conditioned on sources if the first has one."""
    from lmlab.scoring.score_tables import ScoredText

    pairs = [model.model.layout.kind == "pairs" for model in models.values()]
    if texts.name == STDIN and all(pairs):
        texts.reader = map(parse_columns, texts.reader)

    def scored(examples: Iterator[Example]) -> Iterator[dict[str, Score]]:
        checked = examples if any(pairs) else map(single, examples)
        return verbs.score_examples(models, checked, per_token=per_token, **options)

    def single(example: Example) -> Example:
        require_single_text(example, texts.name)
        return example

    for example, scores in process_lines(texts.examples, scored):
        assert scores is not None and example.line is not None, "examples have text and number"
        numbered = {name: replace(score, line=example.line) for name, score in scores.items()}
        yield ScoredText(
            text=example.text,
            line=example.line,
            scores=numbered,
            spans=words.segmentation.spans(example.text, example.line),
            with_end=words.with_end,
        )
