"""`lmlab show-objective SYSTEM | RUN`: a training objective on one text, as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmlab.cli.options import NoVerify
from lmlab.cli.output import print
from lmlab.cli.terminal import terminal
from lmlab.verbs.diagnosis import show_objective as show


@terminal(show)
def show_objective(
    no_verify: NoVerify = False, *, system: str, out: str | None, **options: Any
) -> None:
    path = Path(f"{Path(system).resolve().name}.svg") if out is None else Path(out)
    figure = show(system, out=path, **options)
    seeded = f", sampled with seed {figure.seed}" if figure.random else ""
    print(f"{path}: inputs and targets of {figure.card.name}{seeded}.")
