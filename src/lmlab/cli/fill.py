"""`lmlab fill RUN TEXT...`: mask filling and infilling."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, LanguageOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import one_line, print, print_table
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    print_results,
    processed_texts,
    read_text_arguments,
)
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.verbs import generation as verbs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmlab.sampling.filled_text import FilledText


@terminal(verbs.fill)
def fill(
    run: RunArgument,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | TEXT...]",
            help="Texts with <mask> or [MASK], or a file with one text per line; - is "
            "standard input.",
        ),
    ] = None,
    text: TextOption = None,
    file: FileOption = None,
    language: LanguageOption = None,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
    *,
    joint: bool,
    blanks: bool,
    **options: Any,
) -> None:
    if joint and blanks:
        raise UserError("blanks are always filled jointly; leave out --joint.")

    from lmlab.sampling.filled_text import FilledText
    from lmlab.verbs.loading import load

    text_input = read_text_arguments(texts or [], text or [], file, errors)
    fill_texts = partial(
        load(run, language=language).fill_stream, joint=joint, blanks=blanks, **options
    )
    with processed_texts(text_input, "filling", fill_texts) as results:
        empty = FilledText(text="").as_dict()
        print_results(results, print_filled, empty=empty, as_json=as_json)


def print_filled(results: Iterable[FilledText | None]) -> None:
    """Print each text with a table of its fillings, an empty line for None."""
    printed_notes: set[str] = set()
    for number, filled in enumerate(results):
        if filled is None:
            print("\n" * (number > 0))
            continue
        if filled.note and filled.note not in printed_notes:
            printed_notes.add(filled.note)
            print(f"note: {filled.note}", file=sys.stderr)
        print("\n" * (number > 0) + one_line(filled.text))
        if filled.candidates:
            _print_fillings(filled)
        else:
            _print_masks(filled)


def _print_masks(filled: FilledText) -> None:
    """Print the candidates per mask; pieces get a column if texts do not show them fully."""
    options = [
        (number, option) for number, mask in enumerate(filled.masks, 1) for option in mask.options
    ]
    marked = any(option.pieces != (option.text,) for _, option in options)
    shared = any(option.share is not None for _, option in options)
    rows = [
        (
            str(number),
            option.text,
            *([" ".join(option.pieces)] if marked else []),
            f"{option.probability:.4f}",
            f"{option.log_prob:.4f}",
            *([] if option.share is None else [f"{option.share:.4f}"]),
        )
        for number, option in options
    ]
    piece, share = ["piece"] * marked, ["share of candidates"] * shared
    print_table(("gap", "text", *piece, "probability", "nats", *share), rows)


def _print_fillings(filled: FilledText) -> None:
    several = len(filled.candidates[0].answers) > 1
    names = [f"gap {n}" for n, _ in enumerate(filled.candidates[0].answers, 1)]
    rows = [
        (
            f"{candidate.log_prob:.4f}",
            *map(_filling_text, candidate.answers),
            candidate.text + ("" if candidate.finished else " …"),
        )
        for candidate in filled.candidates
    ]
    print_table(("nats", *(names if several else ["gap"]), "text"), rows)
    if filled.kind is not None:
        from lmlab.core.score_descriptions import KIND_DESCRIPTIONS

        print(f"kind {filled.kind} ({KIND_DESCRIPTIONS[filled.kind]}); {filled.order}")


def _filling_text(answer: str) -> str:
    return answer or "(nothing)"
