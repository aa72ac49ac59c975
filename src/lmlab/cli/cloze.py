"""`lmlab cloze RUN [FILE | -] [--data CORPUS]`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from lmlab.cli.options import Errors, Json, Raw, Run
from lmlab.cli.output import print, print_json, scoring_bar
from lmlab.cli.texts import File, Text, texts_from
from lmlab.core.errors import UserError


def cloze(
    run: Run,
    file: File = None,
    text: Text = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="CORPUS", help="The test split of a corpus; the run's own if none."),
    ] = None,
    texts: Annotated[int, typer.Option(help="Texts that are asked about at most.")] = 2000,
    seed: Annotated[int, typer.Option(help="Decides which tokens are hidden.")] = 0,
    errors: Errors = "strict",
    raw: Raw = False,
    as_json: Json = False,
) -> None:
    """Hide a token of each text and ask for it: how often the likeliest one is right."""
    from lmlab.api import load
    from lmlab.language_model import corpus_of
    from lmlab.scoring.cloze import HOW
    from lmlab.scoring.cloze import cloze as ask

    if data is not None and (file is not None or text):
        raise UserError("--data does not apply to a FILE or --text; remove it.")
    given = texts_from(file, text or [], errors, instead="--text") if file or text else None
    model = load(run)
    asked: Iterator[str]
    if given is not None:
        asked, where = given.texts, given.name
    else:
        corpus = corpus_of([model.model], data, None)
        asked = (example.text for example in corpus.split("test"))
        where = f"the test split of {corpus.name}"
    report, size = (None, None) if given is None else (given.report, given.size)
    with scoring_bar("cloze", report, size, unit="texts", results_follow=True) as done:
        chosen = islice(asked, texts)
        found = ask(model.system, model.tokenizer, chosen, seed=seed, progress=done)
    if given is not None:
        given.tell_empty()
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
