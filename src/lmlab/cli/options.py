"""Options shared by several commands: translation decoding, JSON output, budgets, splits."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, TypeVar

import typer

from lmlab.cli.output import keep_raw
from lmlab.core.manifest import set_verification

Command = TypeVar("Command", bound=Callable[..., None])


def with_decoding_options(command: Command) -> Command:
    """Give a command the options of translation decoding; it takes them as `**decoding`."""
    declared = signature(command, eval_str=True)
    parameters = [p for p in declared.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    parameters += signature(_decoding_options, eval_str=True).parameters.values()
    keyword_only = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters]
    vars(command)["__signature__"] = declared.replace(parameters=keyword_only)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _decoding_options(
    method: Annotated[str, typer.Option(help="beam, greedy, sample or mbr.")] = "beam",
    beam: Annotated[int | None, typer.Option("--beam", help="Beam width; 5.")] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Exponent A of log p / length^A, larger prefers longer; 1, and 0 is log p."
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            metavar="NATS", help="Prune beams this far behind the best; 4, and inf keeps all."
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Number of samples for mbr; 16.")] = None,
    utility: Annotated[str | None, typer.Option(help="Utility of mbr: chrf or bleu.")] = None,
    temperature: Annotated[float | None, typer.Option(help="For sample and mbr.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For sample and mbr.")] = None,
    top_p: Annotated[float | None, typer.Option(help="For sample and mbr.")] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of tokens of a translation, without --prefix.",
            show_default="twice the source's and 10",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed, 0 or more.")] = 0,
) -> None:
    """The parameters that `with_decoding_options` adds."""


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
SizeOption = Annotated[str | None, typer.Option(help="tiny, small or base; small.")]
RecipeOption = Annotated[str | None, typer.Option(help="A named set of settings.")]
StepsOption = Annotated[int | None, typer.Option(help="Budget: optimiser steps.")]
MinutesOption = Annotated[float | None, typer.Option(help="Budget: minutes of wall-clock time.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Resume from a checkpoint.")]
SplitOption = Annotated[str, typer.Option(help="train, validation or test.")]
CorpusArgument = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A built-in name, a file, a folder, NAME:PATH for a protocol, or for pairs "
        "parallel:de-en:FOLDER or parallel:FILE,FILE; see lmlab data list.",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
