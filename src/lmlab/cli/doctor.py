"""`lmlab doctor RUN`: findings on a training, and what its predictions depend on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import console, print, print_json, warn
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError
from lmlab.core.figure_style import FigureFileStyle
from lmlab.verbs.diagnosis import doctor as examine

if TYPE_CHECKING:
    from lmlab.diagnosis.findings import Examination


@terminal(examine, loads=True, without=("precision",))
def doctor(
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if there are findings.")
    ] = False,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    run: str,
    data: str | None,
    out: str | None,
    text: str | None,
    **figure_style: Any,
) -> None:
    """A checkpoint in Hugging Face format has no training history.

    Whether its predictions depend on later tokens, padding or other texts is examined alone, as in
    every run.

    Exit codes: 0 examined; 1 with --strict if there is a finding; 2 error.

    A check that was not run is no finding; the last line counts them.
    """
    from lmlab.diagnosis.text_report import report_lines

    examination = examine(run, data=data, text=text, **figure_style)
    figures = _write_figure(examination, run, out, FigureFileStyle(**figure_style))
    if as_json:
        print_json(examination.as_dict())
    else:
        screen = console()
        for line, style in report_lines(examination):
            screen.print(line, style=style or None, soft_wrap=True)
    for figure in (file for file in figures if file.suffix == figures[0].suffix):
        print(f"written: {figure}", file=sys.stderr)
    if strict and examination.findings:
        sys.exit(1)


def _write_figure(
    examination: Examination, run: str, out: str | None, style: FigureFileStyle
) -> list[Path]:
    """Write the figures and return their files; none, with a warning, if the run is read-only.

    Nothing is written into a checkpoint that is not a run.
    """
    from lmlab.core.atomic_files import check_inside
    from lmlab.diagnosis.examination_figures import write_examination_figures
    from lmlab.interop.load_model import is_hub_checkpoint

    if out is not None:
        return write_examination_figures(examination, Path(out), style)
    if is_hub_checkpoint(Path(run)):
        return []
    figures = Path(run) / "figures"
    try:
        check_inside(figures, Path(run))
        return write_examination_figures(examination, figures, style)
    except UserError as error:
        warn(f"no figure was written: {str(error).rstrip('.')}, or give another one by --out DIR.")
        return []
