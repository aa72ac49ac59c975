"""`lmlab export-hf RUN FOLDER`: Hugging Face export."""

from __future__ import annotations

from typing import Annotated

import typer

from lmlab.cli.options import NoVerify, RunArgument
from lmlab.cli.output import print


def export_hf(
    run: RunArgument,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder.")],
    no_verify: NoVerify = False,
) -> None:
    """Export a run in Hugging Face format, which transformers loads."""
    from lmlab.interop.hf import checkpoint_export

    family = checkpoint_export.export_hf(run, folder)
    print(f"{folder}: model type {family.model_type}")
    if (remark := checkpoint_export.softmax_note(family)) is not None:
        print(f"note: {remark}")
