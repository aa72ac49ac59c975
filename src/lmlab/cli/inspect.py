"""`lmlab inspect RUN... [--text T ...] [--words a,b,c] [--out DIR]`: interpretability figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from lmlab.cli.arguments import split_models_and_data
from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import console, print, print_json
from lmlab.core.errors import UserError


def inspect(
    arguments: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of trained runs.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="T", help="A sentence to show; repeatable. The run's own, if none."),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C", help="Words to show nearest neighbours of; frequent ones if none."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Output folder; the run's own figures folder if not given."
        ),
    ] = None,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
) -> None:
    """Inspect trained models: attention, activations, gradients and more, as SVG, PNG and HTML."""
    runs, data = split_models_and_data(arguments)
    if data:
        raise UserError(f"inspect takes runs alone, and {data[0]} is none; remove it.")

    from lmlab.api import inspect as inspect_runs

    chosen_words = [word.strip() for word in re.split("[,，]", words or "") if word.strip()]
    screen = console(stderr=True)
    with screen.status("drawing") as status:
        inspection = inspect_runs(
            runs,
            texts=text or [],
            words=chosen_words,
            out=out,
            progress=lambda title: status.update(f"drawing {title}"),
        )
    if as_json:
        print_json(inspection.as_dict())
        return
    for figure in inspection.figures:
        svg, png = inspection.files(figure)
        about = f" “{figure.text}”" if figure.text else ""
        print(f"{svg} and {png.suffix}: {figure.title}{about}. {figure.caption}")
    print(f"{inspection.page}: all of them on a page.")
    for note in inspection.notes:
        print(note, file=sys.stderr)
