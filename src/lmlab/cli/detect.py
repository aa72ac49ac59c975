"""`lmlab detect RUN [FILE | - | TEXT...]`: replaced tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import console, print, print_table, printable
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    TextsOrFileArgument,
    print_results,
    processed_texts,
    read_text_arguments,
)
from lmlab.core.shared_options import Errors
from lmlab.verbs import scoring as verbs

if TYPE_CHECKING:
    from lmlab.scoring.replaced_tokens_detection import DetectedText


REPLACED_STYLE = "bold red"


@terminal(verbs.detect)
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
    errors: Errors = "strict",
    no_verify: NoVerify = False,
) -> None:
    from lmlab.verbs.loading import load

    text_input = read_text_arguments(texts or [], text or [], file, errors)
    model = load(run)
    text_input.count_unknown_words(model.tokenizer)
    show = partial(_print_detected, threshold=threshold)
    with processed_texts(text_input, "detecting", model.detect_stream) as results:
        print_results(results, show, empty={"text": "", "tokens": []}, as_json=as_json)
    text_input.warn_unknown_words()


def _print_detected(results: Iterable[DetectedText | None], threshold: float) -> None:
    """Print each text with a table of its tokens, an empty line for None."""
    for number, detected in enumerate(results):
        print("\n" * (number > 0), end="", flush=True)
        if detected is None:
            print()
            continue
        _print_marked(detected, threshold)
        rows = [(t.token, f"{t.probability:.4f}", f"{t.start}-{t.end}") for t in detected.tokens]
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
