"""`lmlab inspect RUN...`: figures of what happens inside trained models."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from lmlab.cli.arguments import split_models_and_data
from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import console, print, print_json
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError
from lmlab.verbs.diagnosis import inspect as inspect_runs


@terminal(inspect_runs, loads=True)
def inspect(
    arguments: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of trained runs.")
    ],
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    **options: Any,
) -> None:
    runs, data = split_models_and_data(arguments)
    if data:
        raise UserError(f"inspect takes runs alone, and {data[0]} is none; remove it.")

    screen = console(stderr=True)
    with screen.status("drawing") as status:
        inspection = inspect_runs(
            runs, progress=lambda title: status.update(f"drawing {title}"), **options
        )
    if as_json:
        print_json(inspection.as_dict())
        return
    for figure in inspection.figures:
        first, *others = inspection.files(figure)
        files = " and ".join([str(first), *(other.suffix for other in others)])
        about = f" “{figure.text}”" if figure.text else ""
        print(f"{files}: {figure.title}{about}. {figure.caption}")
    print(f"{inspection.page}: all of them on a page.")
    for note in inspection.notes:
        print(note, file=sys.stderr)
