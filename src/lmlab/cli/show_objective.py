"""`lmlab show-objective SYSTEM [--text T] [--set K=V ...] [--out F]`: inputs, targets, mask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lmlab.cli.options import NoVerify
from lmlab.cli.output import print


def show_objective(
    system: Annotated[
        str,
        typer.Argument(
            metavar="SYSTEM",
            help="A system of the zoo, or a run's folder (./NAME where a system has its name).",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Text to show; words separated by spaces (un ##happy is one of two), "
            "Chinese characters each by itself.",
        ),
    ] = None,
    condition: Annotated[
        str | None,
        typer.Option(metavar="C", help="Text to condition on: the source of a translation model."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**31 - 1,
            help="Random seed of the masking; by default one that masks something.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a setting of the system; repeatable. See lmlab settings SYSTEM.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="FILE.svg or FILE.png; SYSTEM.svg.")
    ] = None,
    no_verify: NoVerify = False,
) -> None:
    """Plot a training objective on one text: masked and input tokens, targets, attention mask."""
    from lmlab.api import show_objective as show
    from lmlab.cli.train import parse_settings

    path = Path(f"{Path(system).resolve().name}.svg") if out is None else out
    figure = show(
        system,
        text=text,
        condition=condition,
        seed=seed,
        settings=parse_settings(settings or []),
        out=path,
    )
    seeded = f", sampled with seed {figure.seed}" if figure.random else ""
    print(f"{path}: inputs and targets of {figure.card.name}{seeded}.")
