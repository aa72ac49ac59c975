"""`lmlab train SYSTEM --data CORPUS --out RUN [--resume]`: train a system on a corpus."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from lmlab.cli.options import NoVerify
from lmlab.cli.output import print
from lmlab.cli.terminal import terminal
from lmlab.verbs.training import demo as run_demo
from lmlab.verbs.training import train as train_system


@terminal(train_system, config=True)
def train(
    system: str,
    settings: dict[str, str] | None,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the training step: slow to start, faster on some machines."
        ),
    ] = False,
    no_verify: NoVerify = False,
    **options: Any,
) -> None:
    chosen = (settings or {}) | ({"compile": "true"} if compile else {})
    result = train_system(system, settings=chosen, **options)
    if result.reason == "interrupted":
        sys.exit(130)  # the training loop has already printed how to resume
    if os.environ.get("RANK", "0") == "0":
        from lmlab.reports.report_sections import write_run_figures

        write_run_figures(
            result.path, unit=result.unit, loss_is_comparable=result.loss_is_comparable
        )


@terminal(run_demo)
def demo() -> None:
    path = run_demo()
    print(f"The report is at {path.resolve()}; open it in a browser.")
