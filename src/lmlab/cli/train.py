"""`lmlab train SYSTEM --data CORPUS --out RUN [--resume]`: train a system on a corpus."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from lmlab.cli.options import (
    MinutesOption,
    NoVerify,
    RecipeOption,
    ResumeOption,
    RunsErrorsOption,
    SizeOption,
    StepsOption,
)
from lmlab.core.errors import UserError
from lmlab.core.registry import find_system


def train(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="A system of lmlab systems.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="CORPUS",
            help="Training corpus: a built-in name, a file, a folder, NAME:PATH for a "
            "protocol; for translation models pairs.tsv, parallel:de-en:FOLDER or "
            "parallel:FILE,FILE. See lmlab data list.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="RUN", help="Output folder.")],
    size: SizeOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a setting of the system or of the training; repeatable. See lmlab "
            "settings SYSTEM.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="word, char, bpe, wordpiece, or a tokenizer.json; the corpus's own if not given."
        ),
    ] = None,
    source_tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer of the sources of a parallel corpus, for a vocabulary of their "
            "own; shared if not given."
        ),
    ] = None,
    objective: Annotated[str | None, typer.Option(help="Training objective.")] = None,
    recipe: RecipeOption = None,
    base: Annotated[
        str | None, typer.Option(metavar="RUN", help="A run to initialise from.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="A Transformer run (roberta, bert …) to initialise the system's encoder "
            "from, weights and settings.",
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="Documents to retrieve from: capitals, wordnet, a file with one document "
            "per line, JSON lines or a folder of texts; the system's own choice if not "
            "given."
        ),
    ] = None,
    knowledge: Annotated[
        str | None,
        typer.Option(
            help="Entities and facts: capitals, wordnet, or a folder; the system's own choice if "
            "not given."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Budget: epochs; the first budget reached ends the training.")
    ] = None,
    steps: StepsOption = None,
    minutes: MinutesOption = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; 0.")] = None,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the training step: slow to start, faster on some machines."
        ),
    ] = False,
    resume: ResumeOption = False,
    errors: RunsErrorsOption = None,
    no_verify: NoVerify = False,
) -> None:
    """Train a system on a corpus; the run's folder holds all that is needed to use or repeat it."""
    find_system(system)  # report a wrong name before the slow import of torch
    parsed_settings = parse_settings(settings or []) | ({"compile": "true"} if compile else {})

    from lmlab.api import train as train_system

    result = train_system(
        system,
        data=data,
        out=out,
        size=size,
        settings=parsed_settings,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        objective=objective,
        recipe=recipe,
        base=base,
        encoder=encoder,
        documents=documents,
        knowledge=knowledge,
        epochs=epochs,
        steps=steps,
        minutes=minutes,
        seed=seed,
        resume=resume,
        errors=errors,
    )
    if result.reason == "interrupted":
        sys.exit(130)  # the training loop has already printed how to resume
    if os.environ.get("RANK", "0") == "0":
        from lmlab.reports.report_sections import write_run_figures

        write_run_figures(
            result.path, unit=result.unit, loss_is_comparable=result.loss_is_comparable
        )


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Parse `key=value` strings; duplicate keys are an error."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UserError(f"--set must be key=value, as in --set width=256, got {pair!r}.")
        if key in settings:
            raise UserError(f"--set gives {key} twice, {settings[key]} and {value}; give it once.")
        settings[key] = value
    return settings
