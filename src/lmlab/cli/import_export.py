"""`lmlab import-hf`, `export-hf`, `import-arpa` and `export-arpa`: formats of other tools."""

from __future__ import annotations

from typing import Annotated

import typer

from lmlab.cli.options import NoVerify, RunArgument
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


def export_hf(
    run: RunArgument,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder.")],
    no_verify: NoVerify = False,
) -> None:
    """Export a run in Hugging Face format, which transformers loads."""
    from lmlab.interop.hf import checkpoint_export

    family = checkpoint_export.export_hf(run, folder)
    print(f"{folder}: model type {family.model_type}")
    if (note := checkpoint_export.softmax_note(family)) is not None:
        print(f"note: {note}")


ArpaFileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="An ARPA file; .gz is compressed.")
]


def export_arpa(run: RunArgument, file: ArpaFileArgument, no_verify: NoVerify = False) -> None:
    """Export an n-gram run as an ARPA file, which KenLM, SRILM and others read."""
    from lmlab.interop import arpa

    arpa.export_arpa(run, file)
    print(f"wrote {file}")


def import_arpa(
    file: ArpaFileArgument,
    out: Annotated[str, typer.Option(metavar="RUN", help="The folder of the new run.")],
) -> None:
    """Import an ARPA file as a run, to be scored, sampled and compared like any other."""
    from lmlab.interop import arpa

    model = arpa.import_arpa(file, out)
    size = model.tokenizer.vocabulary.size
    print(f"{out}: an n-gram of order {model.config['system_config']['order']} over {size} tokens")
