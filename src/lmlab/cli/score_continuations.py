"""`lmlab score RUN --given PREFIX`, `--conditional`: log-probabilities of continuations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmlab.cli.output import one_line, print, print_json_list
from lmlab.cli.text_inputs import STDIN, TextInput, process_lines, read_texts, require_single_text
from lmlab.core.errors import UserError
from lmlab.data.readers import Example

if TYPE_CHECKING:
    from lmlab.scoring.conditional import ConditionalScore
    from lmlab.verbs.language_model import LanguageModel


def write_continuations(
    run: str,
    texts: TextInput,
    *,
    as_json: bool,
    per_token: bool,
    mean: bool,
    language: str | None,
    **options: Any,
) -> None:
    """Score continuations and print them."""
    from lmlab.verbs.loading import load

    model = load(run, language=language)
    texts.count_unknown_words(model.tokenizer)
    scores = score_continuations(model, texts, mean=mean, **options)
    print_continuations(scores, as_json=as_json, per_token=per_token, mean=mean)
    texts.warn_empty_lines()
    texts.warn_unknown_words()


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
    from lmlab.core.score_descriptions import KIND_DESCRIPTIONS, describe_convention
    from lmlab.scoring.formatting import format_count

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


def print_token_scores(parts: Iterable[tuple[str, int, int, float]]) -> None:
    """Print tokens with their character offsets and log-probabilities in nats."""
    for piece, start, end, log_prob in parts:
        print(f"\t{log_prob:.4f}\t{start}-{end}\t{piece}")
