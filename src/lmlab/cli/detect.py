"""`lmlab detect RUN TEXT... | -` or `--file FILE`: replaced token detection."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import ErrorsOption, JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import (
    console,
    print,
    print_json_list,
    print_table,
    printable,
    text_progress_bar,
    with_progress,
)
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    TextsOrFileArgument,
    process_lines,
    read_text_arguments,
    require_single_text,
)

if TYPE_CHECKING:
    from lmlab.data.readers import Example
    from lmlab.scoring.replaced_tokens_detection import DetectedText

REPLACED_STYLE = "bold red"


def detect(
    run: RunArgument,
    texts: TextsOrFileArgument = None,
    text: TextOption = None,
    file: FileOption = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Mark tokens of at least this probability.")
    ] = 0.5,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: ErrorsOption = "strict",
    no_verify: NoVerify = False,
) -> None:
    """Detect replaced tokens (ELECTRA): each token's probability of not being the original."""
    from lmlab.api import load

    given = read_text_arguments(texts or [], text or [], file, errors)
    model = load(run)
    given.count_unknown_words(model.tokenizer)

    def detected(examples: Iterator[Example]) -> Iterator[DetectedText]:
        return model.detect_stream(require_single_text(example, given.name) for example in examples)

    with text_progress_bar(
        f"detecting {given.name}", given.report, given.size, unit="texts"
    ) as done:
        found = with_progress(process_lines(given.lines, detected), done)
        if as_json:
            print_json_list(_record(line, each) for line, each in found)
        else:
            _print_detected((each for _, each in found), threshold)
    given.warn_unknown_words()


def _record(line: Example, detected: DetectedText | None) -> dict[str, object]:
    if detected is None:
        return {"line": line.line, "text": "", "tokens": []}
    return {"line": line.line, **detected.as_dict()}


def _print_detected(found: Iterable[DetectedText | None], threshold: float) -> None:
    """Print each text with a table of its tokens, an empty line for None."""
    for number, each in enumerate(found):
        print("\n" * (number > 0), end="", flush=True)
        if each is None:
            print()
            continue
        _print_marked(each, threshold)
        rows = [(t.token, f"{t.probability:.4f}", f"{t.start}-{t.end}") for t in each.tokens]
        print_table(("token", "P(replaced)", "characters"), rows)


def _print_marked(detected: DetectedText, threshold: float) -> None:
    """Print the text with replaced tokens in colour on a terminal, in [brackets] elsewhere."""
    from rich.text import Text as RichText

    colour = sys.stdout.isatty()
    marked, end = RichText(), 0
    for token in detected.replaced(threshold):
        if token.start < end or token.start == token.end:
            continue  # several pieces of one character: the first stands for it
        marked.append(printable(detected.text[end : token.start]))
        words = printable(detected.text[token.start : token.end])
        marked.append(words if colour else f"[{words}]", style=REPLACED_STYLE)
        end = token.end
    marked.append(printable(detected.text[end:]))
    console().print(marked, soft_wrap=True)
