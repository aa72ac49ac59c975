"""`lmlab export-arpa RUN FILE` and `lmlab import-arpa FILE --out RUN`."""

from __future__ import annotations

from typing import Annotated

import typer

from lmlab.cli.options import NoVerify, RunArgument
from lmlab.cli.output import print

ArpaFileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="An ARPA file; .gz is compressed.")
]


def export_arpa(run: RunArgument, file: ArpaFileArgument, no_verify: NoVerify = False) -> None:
    """Export an n-gram run as an ARPA file, which KenLM, SRILM and others read."""
    from lmlab.interop import arpa_runs

    arpa_runs.export_arpa(run, file)
    print(f"wrote {file}")


def import_arpa(
    file: ArpaFileArgument,
    out: Annotated[str, typer.Option(metavar="RUN", help="The folder of the new run.")],
) -> None:
    """Import an ARPA file as a run, to be scored, sampled and compared like any other."""
    from lmlab.interop import arpa_runs

    model = arpa_runs.import_arpa(file, out)
    size = model.tokenizer.vocabulary.size
    print(f"{out}: an n-gram of order {model.config['system_config']['order']} over {size} tokens")
