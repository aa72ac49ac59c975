"""`lmlab score RUN [FILE | - | TEXT...]`: log-probabilities, surprisal and pseudo-likelihood."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, LanguageOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import one_line, print, print_json_list
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
from lmlab.verbs import scoring as verbs

if TYPE_CHECKING:
    from lmlab.core.score import Score
    from lmlab.scoring.conditional import ConditionalScore
    from lmlab.verbs.language_model import LanguageModel


@terminal(verbs.score, verbs.score_given)
def score(
    run: RunArgument,
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
        as_json=as_json, per_token=per_token, per_word=per_word, csv=csv, mean=mean, raw=raw
    )
    continuing = given is not None or conditional
    check_form(form, continuing=continuing, end=end, separator=separator, sources=sources)
    file, given_texts = file_or_texts(arguments, text, named_file)
    options["mean"] = mean
    if continuing:
        texts = read_continuations(file, given_texts, given, errors)
        options |= {"end": end, "separator": separator}
        write_continuations(run, texts, form, language=language, **options)
        return
    texts = read_texts(file, given_texts, errors, instead="--text")
    if sources:
        add_sources(texts, given_texts, sources)
    # Texts of the command line form no stream: each starts anew.
    write_scores(run, texts, form, language=language, carry=file is not None, **options)


@dataclass(frozen=True, kw_only=True)
class PrintedForm:
    """How scores are printed."""

    as_json: bool
    per_token: bool
    per_word: bool
    csv: bool
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


def write_continuations(
    run: str, texts: TextInput, form: PrintedForm, *, language: str | None, **options: Any
) -> None:
    """Score continuations and print them."""
    from lmlab.verbs.loading import load

    model = load(run, language=language)
    texts.count_unknown_words(model.tokenizer)
    scores = score_continuations(model, texts, **options)
    print_continuations(scores, as_json=form.as_json, per_token=form.per_token, mean=form.mean)
    texts.warn_empty_lines()
    texts.warn_unknown_words()


def write_scores(
    run: str,
    texts: TextInput,
    form: PrintedForm,
    *,
    language: str | None,
    carry: bool,
    **options: Any,
) -> None:
    """Score texts and print them."""
    from lmlab.verbs.loading import load

    model = load(run, language=language)
    texts.count_unknown_words(model.tokenizer, model.model.effective_source_tokenizer)
    with texts.progress_bar("scoring", unit="tokens") as progress:
        by_token = form.per_token or form.per_word or form.csv or form.as_json
        scores = score_texts(
            model, texts, per_token=by_token, carry=carry, progress=progress, **options
        )
        if form.as_json:
            print_json_list(_record(score, form.per_word) for score in scores)
        elif form.csv:
            from lmlab.scoring.minimal_pairs import unique_model_names
            from lmlab.scoring.word_surprisal import write_surprisal_csv

            [name] = unique_model_names([model.path])
            write_surprisal_csv(scores, sys.stdout, model=name, raw=form.raw)
        else:
            print_scores(scores, per_token=form.per_token, per_word=form.per_word)
    texts.warn_empty_lines()
    texts.warn_unknown_words()
    if texts.size is not None and sys.stderr.isatty():
        print(f"{texts.name}: {texts.report.summary()}", file=sys.stderr)


def _record(score: Score, per_word: bool) -> dict[str, Any]:
    """JSON record of a score: as `Score.as_dict`, without its slow copying."""
    record = dict(vars(score))
    record["convention"] = vars(score.convention)
    record["per_token"] = [vars(token) for token in score.per_token]
    record["mean"] = score.mean
    if per_word:
        from lmlab.scoring.word_surprisal import word_scores

        record["per_word"] = [asdict(word) for word in word_scores(score)]
    return record


def print_scores(scores: Iterator[Score], *, per_token: bool, per_word: bool) -> None:
    """Print a line per text, its tokens or words below it, and the total last."""
    from lmlab.core.score import summarise
    from lmlab.scoring.formatting import describe_summary, format_count

    def printed() -> Iterator[Score]:
        for score in scores:
            source = "" if score.source is None else f"{score.source} | "
            line = one_line(f"{source}{score.text}")
            unit = "nats in the mean" if score.convention.mean else "nats"
            per_token_loss = f"{0.0 - score.mean:.4f} nats/token"
            tokens = format_count(score.tokens, "token")
            print(f"{score.figure:.4f} {unit}\t{tokens}\t{per_token_loss}\t{line}")
            if (per_token or per_word) and score.tokens and not score.per_token:
                print("\tthe text is scored as a whole, and its tokens have no scores of their own")
            elif per_token or per_word:
                _print_parts(score, per_token=per_token, per_word=per_word)
            yield score

    print(describe_summary(summarise(printed())))


def _print_parts(score: Score, *, per_token: bool, per_word: bool) -> None:
    from lmlab.scoring.word_surprisal import word_scores

    if per_token:
        print_token_scores((t.token, t.start, t.end, t.log_prob) for t in score.per_token)
    if per_word:
        print_token_scores((w.word, w.start, w.end, w.log_prob) for w in word_scores(score))


def print_token_scores(parts: Iterable[tuple[str, int, int, float]]) -> None:
    """Print tokens with their character offsets and log-probabilities in nats."""
    for piece, start, end, log_prob in parts:
        print(f"\t{log_prob:.4f}\t{start}-{end}\t{piece}")


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


def score_texts(
    model: LanguageModel, texts: TextInput, *, per_token: bool, carry: bool, **options: Any
) -> Iterator[Score]:
    """Scores of texts with their line numbers, conditioned on sources if the first has one."""
    if texts.name == STDIN and model.model.layout.kind == "pairs":
        texts.reader = map(parse_columns, texts.reader)

    def scored(examples: Iterator[Example]) -> Iterator[Score]:
        first = next(examples)
        examples = chain([first], examples)
        if first.condition is None:
            single_texts = (require_single_text(example, texts.name) for example in examples)
            return model.scorer(carry=carry, **options).score(single_texts, per_token=per_token)
        return model.source_scorer(**options).score_examples(examples, per_token=per_token)

    for line, score in process_lines(texts.examples, scored):
        assert score is not None, "examples have text"
        yield replace(score, line=line.line)


def parse_columns(line: Example) -> Example:
    """Parse a line of source, tab and text; a line without text stays empty."""
    source, _, text = (part.strip() for part in line.text.partition("\t"))
    if line.text and not text:
        raise UserError(
            f"{STDIN}, line {line.line}: expected a source, a tab and a text, as this model scores "
            f"a text given its source, got {line.text[:40]!r}."
        )
    return replace(line, text=text, condition=source)


def read_continuations(
    file: str | None, texts: list[str], prefix: str | None, errors: str
) -> TextInput:
    """Texts with a prefix each: one for all, or that of their line in a file."""
    text_input = read_texts(file, texts, errors, instead="--text")
    if prefix is not None:
        text_input.reader = (
            replace(line, text=require_single_text(line, text_input.name), condition=prefix)
            for line in text_input.reader
        )
        return text_input
    if file is None:
        raise UserError("--conditional reads prefixes and continuations from a FILE; name it.")
    if file == "-":
        text_input.reader = map(parse_columns, text_input.reader)
    text_input.reader = (_with_prefix(line, file) for line in text_input.reader)
    return text_input


def _with_prefix(line: Example, file: str) -> Example:
    if line.text and line.condition is None:
        raise UserError(
            f"{file} holds single texts; give a .tsv file with a prefix, a tab and a "
            "continuation a line, or --given with one prefix for all."
        )
    return line


def score_continuations(
    model: LanguageModel, texts: TextInput, **options: Any
) -> Iterator[tuple[int | None, ConditionalScore]]:
    """Line number and score of each continuation."""

    def scored(examples: Iterator[Example]) -> Iterator[ConditionalScore]:
        pairs = ((example.condition or "", example.text) for example in examples)
        return model.score_given(pairs, **options)

    for line, score in process_lines(texts.examples, scored):
        assert score is not None, "examples have text"
        yield line.line, score


def print_continuations(
    scores: Iterable[tuple[int | None, ConditionalScore]],
    *,
    as_json: bool,
    per_token: bool,
    mean: bool,
) -> None:
    """Print a line per continuation, or one JSON document."""
    if as_json:
        print_json_list(
            {"line": line, **score.as_dict(), "mean": score.mean} for line, score in scores
        )
        return
    from lmlab.scoring.formatting import KIND_DESCRIPTIONS, describe_convention, format_count

    conventions: set[str] = set()
    for _, score in scores:
        unit = "nats in the mean" if mean else "nats"
        figure = score.mean if mean else score.total
        text = one_line(f"{score.prefix} |{score.continuation}")
        print(f"{figure:.4f} {unit}\t{format_count(score.tokens, 'token')}\t{text}")
        if per_token:
            print_token_scores((t.token, t.start, t.end, t.log_prob) for t in score.per_token)
        kind = f"{score.kind} ({KIND_DESCRIPTIONS[score.kind]})"
        conventions.add(f"kind {kind}; {describe_convention(score.convention)}")
    for sentence in sorted(conventions):
        print(sentence)
