"""Decoding options shared by `translate` and `evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

MethodOption = Annotated[str, typer.Option(help="beam, greedy, sample or mbr.")]
BeamWidthOption = Annotated[int | None, typer.Option("--beam", help="Width of the beam; 5.")]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Ranks by log p / length^A: the greater, the longer; 1, and 0 is log p."),
]
BeamThresholdOption = Annotated[
    float | None,
    typer.Option(
        metavar="NATS",
        help="Beams drop what falls so far behind their best; 4, and inf keeps all.",
    ),
]
SamplesOption = Annotated[int | None, typer.Option(help="Texts drawn for mbr; 16.")]
UtilityOption = Annotated[str | None, typer.Option(help="What mbr weighs by: chrf or bleu.")]
TemperatureOption = Annotated[float | None, typer.Option(help="For sample and mbr.")]
TopKOption = Annotated[int | None, typer.Option(help="For sample and mbr.")]
TopPOption = Annotated[float | None, typer.Option(help="For sample and mbr.")]
MaxLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of a translation, those of --prefix not counted.",
        show_default="twice the source's and 10",
    ),
]
SeedOption = Annotated[int, typer.Option(help="Decides every draw, 0 or more.")]
