"""Decoding options shared by `translate` and `evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

MethodOption = Annotated[str, typer.Option(help="beam, greedy, sample or mbr.")]
BeamWidthOption = Annotated[int | None, typer.Option("--beam", help="Beam width; 5.")]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Exponent A of log p / length^A, larger prefers longer; 1, and 0 is log p."),
]
BeamThresholdOption = Annotated[
    float | None,
    typer.Option(
        metavar="NATS",
        help="Prune beams this far behind the best; 4, and inf keeps all.",
    ),
]
SamplesOption = Annotated[int | None, typer.Option(help="Number of samples for mbr; 16.")]
UtilityOption = Annotated[str | None, typer.Option(help="Utility of mbr: chrf or bleu.")]
TemperatureOption = Annotated[float | None, typer.Option(help="For sample and mbr.")]
TopKOption = Annotated[int | None, typer.Option(help="For sample and mbr.")]
TopPOption = Annotated[float | None, typer.Option(help="For sample and mbr.")]
MaxLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of tokens of a translation, without --prefix.",
        show_default="twice the source's and 10",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Random seed, 0 or more.")]
