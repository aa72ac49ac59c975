"""`lmlab link RUN TEXT...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import Errors, Json, Run
from lmlab.cli.output import print_json_list, print_table
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmlab.scoring.links import LinkedText

LONGEST = 60
"""Characters of a description in a table."""


def link(
    run: Run,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT... | -]", help="Texts; - is standard input."),
    ] = None,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="A text a line.")] = None,
    draw: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Each text with its entities, as SVG, into this folder."),
    ] = None,
    as_json: Json = False,
    errors: Errors = "strict",
) -> None:
    """Tell which entities the words of a text name, by a run with knowledge (knowbert)."""
    if draw is not None and draw.exists() and not draw.is_dir():
        raise UserError(f"{draw} is not a folder; give one to write pictures into.")

    from lmlab.api import load

    given = _texts(texts or [], file, errors)
    found = load(run).link_stream(given)
    if draw is not None:
        from lmlab.diagnostics.link_picture import draw_links

        found = draw_links(found, draw)
    if as_json:
        print_json_list(each.as_dict() for each in found)
        return
    for number, each in enumerate(found):
        print("\n" * (number > 0) + each.text.replace("\n", "\\n"))
        _print_mentions(each)


def _texts(texts: list[str], file: str | None, errors: str) -> Iterator[str]:
    """Those of the command line, of a file, or of standard input (-)."""
    from lmlab.cli.texts import texts_from

    if (file is None) == (not texts):
        raise UserError("give texts to link, and only one of: texts, - for standard input, --file.")
    if texts == ["-"]:
        return texts_from("-", [], errors).texts
    return texts_from(file, texts, errors).texts


def _print_mentions(linked: LinkedText) -> None:
    rows = [
        (
            each.words,
            each.entity or "(none)",
            each.title,
            f"{each.probability:.4f}",
            _short(each.description),
        )
        for each in linked.mentions
    ]
    if rows:
        print_table(("words", "entity", "title", "probability", "what it is"), rows)
    else:
        print("(nothing that the run's knowledge has a name for)")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
