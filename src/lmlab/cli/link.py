"""`lmlab link RUN TEXT...`: entity linking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import ErrorsOption, JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import (
    one_line,
    print,
    print_json_list,
    print_table,
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
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmlab.data.readers import Example
    from lmlab.scoring.entity_linking import LinkedText

MAX_CELL_LENGTH = 60
"""Most characters of a description in a table."""


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
    errors: ErrorsOption = "strict",
    no_verify: NoVerify = False,
) -> None:
    """Link entities: find the mentions of a text and their entities, by a run with knowledge."""
    if draw is not None and draw.exists() and not draw.is_dir():
        raise UserError(f"{draw} is not a folder; give a folder to write figures to.")

    from lmlab.api import load

    given = read_text_arguments(texts or [], text or [], file, errors)
    model = load(run)

    def linked(examples: Iterator[Example]) -> Iterator[LinkedText]:
        return model.link_stream(require_single_text(example, given.name) for example in examples)

    with text_progress_bar(f"linking {given.name}", given.report, given.size, unit="texts") as done:
        found = with_progress(process_lines(given.lines, linked), done)
        if draw is not None:
            from lmlab.inspection.entity_links import with_entity_link_figures

            found = with_entity_link_figures(found, draw)
        if as_json:
            print_json_list(_record(line, each) for line, each in found)
        else:
            _print_linked(each for _, each in found)


def _record(line: Example, linked: LinkedText | None) -> dict[str, object]:
    from lmlab.scoring.entity_linking import LinkedText

    return {"line": line.line, **(linked or LinkedText(text="", mentions=())).as_dict()}


def _print_linked(found: Iterable[LinkedText | None]) -> None:
    """Print each text with a table of its mentions, an empty line for None."""
    for number, each in enumerate(found):
        print("\n" * (number > 0) + ("" if each is None else one_line(each.text)))
        if each is not None:
            _print_mentions(each)


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
    return text if len(text) <= MAX_CELL_LENGTH else f"{text[: MAX_CELL_LENGTH - 1]}…"
