"""`lmlab link RUN [FILE | - | TEXT...]`: mentions and their entities."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import one_line, print, print_table
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    TextsOrFileArgument,
    print_results,
    processed_texts,
    read_text_arguments,
)
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.verbs import scoring as verbs

if TYPE_CHECKING:
    from lmlab.scoring.entity_linking import LinkedText


MAX_CELL_LENGTH = 60
"""Most characters of a description in a table."""


@terminal(verbs.link)
def link(
    run: RunArgument,
    texts: TextsOrFileArgument = None,
    text: TextOption = None,
    file: FileOption = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write each text with its entities as SVG to this folder."
        ),
    ] = None,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
) -> None:
    if draw is not None and draw.exists() and not draw.is_dir():
        raise UserError(f"{draw} is not a folder; give a folder to write figures to.")

    from lmlab.scoring.entity_linking import LinkedText
    from lmlab.verbs.loading import load

    text_input = read_text_arguments(texts or [], text or [], file, errors)
    model = load(run)
    with processed_texts(text_input, "linking", model.link_stream) as results:
        if draw is not None:
            from lmlab.inspection.entity_links import with_entity_link_figures

            results = with_entity_link_figures(results, draw)
        empty = LinkedText(text="", mentions=()).as_dict()
        print_results(results, _print_linked, empty=empty, as_json=as_json)


def _print_linked(results: Iterable[LinkedText | None]) -> None:
    """Print each text with a table of its mentions, an empty line for None."""
    for number, linked in enumerate(results):
        print("\n" * (number > 0) + ("" if linked is None else one_line(linked.text)))
        if linked is not None:
            _print_mentions(linked)


def _print_mentions(linked: LinkedText) -> None:
    rows = [
        (
            mention.words,
            mention.entity or "(none)",
            mention.title,
            f"{mention.probability:.4f}",
            _shorten(mention.description),
        )
        for mention in linked.mentions
    ]
    if rows:
        print_table(("words", "entity", "title", "probability", "what it is"), rows)
    else:
        print("(nothing that the run's knowledge has a name for)")


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CELL_LENGTH else f"{text[: MAX_CELL_LENGTH - 1]}…"
