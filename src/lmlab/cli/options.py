"""Options shared by several commands: translation decoding, JSON output, budgets, splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from lmlab.cli.output import keep_raw
from lmlab.core.manifest import set_verification

Command = TypeVar("Command", bound=Callable[..., None])


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
LanguageOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Language of the texts, of a model with language embeddings (xlm).",
        show_default="the text language of its training",
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
