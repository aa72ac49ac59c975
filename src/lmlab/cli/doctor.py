"""`lmlab doctor RUN [--data CORPUS] [--out DIR] [--strict] [--json]`: diagnose a training run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import JsonOption, NoVerify, RunArgument
from lmlab.cli.output import console, print, print_json, warn
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.diagnosis.findings import Examination


def doctor(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Option(metavar="CORPUS", help="Path of the training corpus, if it has moved."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the figure; RUN/figures.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if there are findings.")
    ] = False,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
) -> None:
    """Diagnose a training run: each finding with its number, why it matters and what to try.

    Exit codes: 0 examined; 1 with --strict if there is a finding; 2 error. A check that was not run
    is no finding; the last line counts them.
    """
    from lmlab.api import doctor as examine
    from lmlab.diagnosis.text_report import report_lines

    examination = examine(run, data=data)
    figures = _write_figure(examination, run, out)
    if as_json:
        print_json(examination.as_dict())
    else:
        screen = console()
        for line, style in report_lines(examination):
            screen.print(line, style=style or None, soft_wrap=True)
    for figure in figures[:1]:
        print(f"written: {figure}", file=sys.stderr)
    if strict and examination.findings:
        sys.exit(1)


def _write_figure(examination: Examination, run: str, out: str | None) -> list[Path]:
    """Write the figure and return its files; none, with a warning, if the run is read-only."""
    from lmlab.core.atomic_files import check_inside
    from lmlab.diagnosis.loss_figure import write_loss_figure

    if out is not None:
        return write_loss_figure(examination, Path(out))
    figures = Path(run) / "figures"
    try:
        check_inside(figures, Path(run))
        return write_loss_figure(examination, figures)
    except UserError as error:
        warn(f"no figure was written: {str(error).rstrip('.')}, or give another one by --out DIR.")
        return []
