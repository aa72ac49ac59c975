"""`lmlab cloze RUN [FILE | -] [--data CORPUS]`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from lmlab.cli.options import Errors, Json, Run
from lmlab.cli.output import console, print_json


def cloze(
    run: Run,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE | -]", help="A text a line; - is standard input.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="CORPUS", help="The test split of a corpus; the run's own if none."),
    ] = None,
    texts: Annotated[int, typer.Option(help="Texts that are asked about at most.")] = 2000,
    seed: Annotated[int, typer.Option(help="Decides which tokens are hidden.")] = 0,
    errors: Errors = "strict",
    as_json: Json = False,
) -> None:
    """Hide a token of each text and ask for it: how often the likeliest one is right."""
    from lmlab.api import load
    from lmlab.cli.texts import texts_from
    from lmlab.language_model import corpus_of
    from lmlab.scoring.cloze import HOW
    from lmlab.scoring.cloze import cloze as ask

    model = load(run)
    if file is not None:
        asked = texts_from(file, [], errors).texts
        where = file
    else:
        corpus = corpus_of([model.model], data, None)
        asked = (example.text for example in corpus.split("test"))
        where = f"the test split of {corpus.name}"
    with console(stderr=True).status("asking"):
        found = ask(model.system, model.tokenizer, islice(asked, texts), seed=seed)
    if as_json:
        print_json({**found.as_dict(), "where": where})
        return
    print(f"asked for {HOW[found.how]}")
    print(
        f"accuracy {found.accuracy:.3f} ± {found.standard_error:.3f}, {found.nats:.3f} nats a "
        f"hidden token, on {found.texts:,} texts of {where}"
    )
    if found.skipped:
        print(f"{found.skipped:,} texts were too long, or had no known token to hide")
