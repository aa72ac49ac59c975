"""Options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

from lmlab.cli.output import keep_raw
from lmlab.core.manifest import set_verification

MethodOption = Annotated[str, typer.Option(help="beam, greedy, sample or mbr.")]
BeamWidthOption = Annotated[int | None, typer.Option("--beam", help="Beam width; 5.")]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(help="Exponent A of log p / length^A, larger prefers longer; 1, and 0 is log p."),
]
BeamThresholdOption = Annotated[
    float | None,
    typer.Option(
        metavar="NATS", help="Prune beams this far behind the best; 4, and inf keeps all."
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


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.")
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print a JSON object a line, as they come, and nothing else.")
]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw",
        callback=keep_raw,
        help="Print texts as they are; control characters are shown as \\x1b otherwise.",
    ),
]
NoVerify = Annotated[
    bool,
    typer.Option(
        "--no-verify",
        callback=lambda skipped: not set_verification(not skipped),
        help="Load runs and indexes without comparing their files with manifest.json.",
    ),
]
ErrorsOption = Annotated[
    str, typer.Option(help="strict: stop at a byte that is not UTF-8; replace: go on and count it.")
]
RunsErrorsOption = Annotated[
    str | None,
    typer.Option(
        "--errors",
        help="strict: stop at a byte that is not UTF-8; replace: go on and count it. As the run "
        "was trained, unless given; strict for a new one.",
    ),
]
CorpusArgument = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A built-in name, a file, a folder, NAME:PATH for a protocol, or for pairs "
        "parallel:de-en:FOLDER or parallel:FILE,FILE; see lmlab data list.",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
