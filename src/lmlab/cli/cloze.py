"""`lmlab cloze RUN [FILE | - | TEXT...] [--data CORPUS]`: accuracy of predicting a masked token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from lmlab.cli.options import ErrorsOption, JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import print, print_json, text_progress_bar
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    TextsOrFileArgument,
    file_or_texts,
    read_texts,
)
from lmlab.core.errors import UserError


def cloze(
    run: RunArgument,
    arguments: TextsOrFileArgument = None,
    text: TextOption = None,
    named_file: FileOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS", help="Use the test split of this corpus; the run's own if none."
        ),
    ] = None,
    texts: Annotated[int, typer.Option(help="Maximum number of texts.")] = 2000,
    seed: Annotated[int, typer.Option(help="Random seed of the masking.")] = 0,
    errors: ErrorsOption = "strict",
    raw: RawOption = False,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
) -> None:
    """Measure cloze accuracy: mask one token per text and predict it."""
    from lmlab.api import load
    from lmlab.language_model import shared_corpus
    from lmlab.scoring.cloze import METHOD_DESCRIPTIONS
    from lmlab.scoring.cloze import cloze_accuracy as ask

    file, chosen = file_or_texts(arguments, text, named_file)
    if data is not None and (file is not None or chosen):
        raise UserError("--data does not apply to a FILE or to texts; remove it.")
    some = file is not None or bool(chosen)
    given = read_texts(file, chosen, errors, instead="--text") if some else None
    model = load(run)
    if given is not None:
        given.count_unknown_words(model.tokenizer)
    asked: Iterator[str]
    if given is not None:
        asked, where = given.texts, given.name
    else:
        corpus = shared_corpus([model.model], data, None)
        asked = (example.text for example in corpus.split("test"))
        where = f"the test split of {corpus.name}"
    report, size = (None, None) if given is None else (given.report, given.size)
    with text_progress_bar("cloze", report, size, unit="texts", results_follow=True) as done:
        some_texts = islice(asked, texts)
        found = ask(model.system, model.tokenizer, some_texts, seed=seed, progress=done)
    if given is not None:
        given.warn_empty_lines()
        given.warn_unknown_words()
    if as_json:
        print_json({**found.as_dict(), "where": where})
        return
    print(f"asked for {METHOD_DESCRIPTIONS[found.method]}")
    print(
        f"accuracy {found.accuracy:.3f} ± {found.standard_error:.3f}, {found.nats:.3f} nats "
        f"per masked token, on {found.texts:,} texts of {where}"
    )
    if found.skipped:
        print(f"{found.skipped:,} texts were too long, or had no known token to mask")
