"""`lmlab cloze RUN [FILE | - | TEXT...] [--data CORPUS]`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from lmlab.cli.options import Errors, Json, NoVerify, Raw, Run
from lmlab.cli.output import print, print_json, scoring_bar
from lmlab.cli.text_inputs import (
    NamedFile,
    Text,
    TextsOrFile,
    file_or_texts,
    texts_from,
)
from lmlab.core.errors import UserError


def cloze(
    run: Run,
    arguments: TextsOrFile = None,
    text: Text = None,
    named_file: NamedFile = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="CORPUS", help="The test split of a corpus; the run's own if none."),
    ] = None,
    texts: Annotated[int, typer.Option(help="Texts that are asked about at most.")] = 2000,
    seed: Annotated[int, typer.Option(help="Decides which tokens are hidden.")] = 0,
    errors: Errors = "strict",
    raw: Raw = False,
    as_json: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Hide a token of each text and ask for it: how often the likeliest one is right."""
    from lmlab.api import load
    from lmlab.language_model import corpus_of
    from lmlab.scoring.cloze import HOW
    from lmlab.scoring.cloze import cloze as ask

    file, chosen = file_or_texts(arguments, text, named_file)
    if data is not None and (file is not None or chosen):
        raise UserError("--data does not apply to a FILE or to texts; remove it.")
    some = file is not None or bool(chosen)
    given = texts_from(file, chosen, errors, instead="--text") if some else None
    model = load(run)
    if given is not None:
        given.watch(model.tokenizer)
    asked: Iterator[str]
    if given is not None:
        asked, where = given.texts, given.name
    else:
        corpus = corpus_of([model.model], data, None)
        asked = (example.text for example in corpus.split("test"))
        where = f"the test split of {corpus.name}"
    report, size = (None, None) if given is None else (given.report, given.size)
    with scoring_bar("cloze", report, size, unit="texts", results_follow=True) as done:
        some_texts = islice(asked, texts)
        found = ask(model.system, model.tokenizer, some_texts, seed=seed, progress=done)
    if given is not None:
        given.tell_empty()
        given.tell_unknown()
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
