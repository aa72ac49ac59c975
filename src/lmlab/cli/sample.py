"""`lmlab sample RUN`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lmlab.cli.options import Json, Run
from lmlab.cli.output import print_json


def sample(
    run: Run,
    n: Annotated[int, typer.Option("-n", help="How many texts.")] = 1,
    prefix: Annotated[str, typer.Option(metavar="T", help="How each text begins.")] = "",
    method: Annotated[str, typer.Option(help="ancestral, greedy or beam.")] = "ancestral",
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 safer, above 1 wilder; for ancestral.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Only the K likeliest tokens; for ancestral.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Only the likeliest tokens of mass P; for ancestral.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; for beam.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="The greater, the longer the texts; for beam.")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Most tokens after the prefix.")] = 100,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    as_json: Json = False,
) -> None:
    """Write texts with a trained model, a text a line."""
    from lmlab.api import load

    model = load(run)
    if note := model.encode_prefix(prefix).note:
        print(f"note: {note}", file=sys.stderr)
    texts = model.sample(
        n,
        prefix=prefix,
        method=method,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        beam=beam,
        length_penalty=length_penalty,
        max_length=max_length,
        seed=seed,
    )
    if as_json:
        print_json([asdict(text) for text in texts])
        return
    for text in texts:
        print(text.text.replace("\n", "\\n"))
