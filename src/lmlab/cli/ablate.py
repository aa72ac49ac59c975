"""`lmlab ablate SYSTEM --data CORPUS --out DIR [--switches SETS]`: trainings with switches off."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from lmlab.cli.options import JsonOption, RecipeOption, SizeOption
from lmlab.cli.output import print, print_json, show_table
from lmlab.cli.train import parse_settings
from lmlab.core.errors import UserError
from lmlab.core.registry import find_system
from lmlab.core.untrusted_input import parse_integer


def ablate(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="A system with switches.")],
    data: Annotated[str, typer.Option(metavar="CORPUS", help="Training corpus.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Output folder.")],
    switches: Annotated[
        str | None,
        typer.Option(
            metavar="SETS", help='Sets of switches to turn off, by number or name: "4;0,4,5;4,6".'
        ),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Turn off every switch by itself; the default.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Turn off every pair of switches.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Training epochs.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="10,20", help="Epochs to report losses at; the last.")
    ] = None,
    size: SizeOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a setting of the system or of the training, in every run; repeatable. "
            "See lmlab settings SYSTEM. Switches in --set off=… are off in every row.",
        ),
    ] = None,
    recipe: RecipeOption = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="word, char, bpe, wordpiece, or a tokenizer.json.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of trainings run in parallel.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Ablate a system: train it whole and with terms switched off, over several seeds.

    Interrupted at any time, the same command resumes.
    """
    find_system(system)  # report a wrong name before the slow import of torch
    parsed_settings, report_epochs = parse_settings(settings or []), _epochs(at)

    from lmlab.api import ablate as ablate_system
    from lmlab.experiments.ablation_tables import ablation_rich_table

    ablation = ablate_system(
        system,
        data=data,
        out=out,
        switches=switches,
        each=each,
        pairs=pairs,
        seeds=seeds,
        epochs=epochs,
        at=report_epochs,
        size=size,
        settings=parsed_settings,
        recipe=recipe,
        tokenizer=tokenizer,
        jobs=jobs,
    )
    if as_json:
        print_json(ablation.as_dict())
    elif ablation.rows:
        show_table(ablation_rich_table(ablation))
        for note in ablation.notes:
            print(f"- {note}")
    if not ablation.finished:
        print(f"lmlab: stopped; run the same command again to resume in {out}.", file=sys.stderr)
        sys.exit(130)
    print(f"written: {out}/ablation.json, .md, .tex, .svg and .png", file=sys.stderr)


def _epochs(text: str | None) -> list[int]:
    words = [word for word in re.split(r"[,\s]+", text or "") if word]
    numbers = [number for word in words if (number := parse_integer(word)) is not None]
    if len(numbers) < len(words):
        raise UserError(f"--at must be epochs separated by commas, as in --at 10,20, got {text!r}.")
    return numbers
