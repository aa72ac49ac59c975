"""`lmlab import-hf FOLDER_OR_NAME --out RUN`: Hugging Face import."""

from __future__ import annotations

from typing import Annotated

import typer

from lmlab.cli.output import print


def import_hf(
    source: Annotated[
        str,
        typer.Argument(metavar="FOLDER_OR_NAME", help="A checkpoint's folder, or its Hub name."),
    ],
    out: Annotated[str, typer.Option(metavar="RUN", help="The folder of the new run.")],
    family: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The model type that it must be of.")
    ] = None,
) -> None:
    """Import a Hugging Face checkpoint as a run."""
    from lmlab.interop.hf import checkpoint_import

    model = checkpoint_import.import_hf(source, out, family=family)
    parameters = model.system.parameter_count
    size = model.tokenizer.vocabulary.size
    print(f"{out}: {model.card.name}, {parameters:,} parameters over {size:,} tokens")
    for note in model.config["imported"]["notes"]:
        print(f"note: {note}")
