"""`lmlab ablate SYSTEM --data CORPUS --out DIR [--switches "4;0,4,5;4,6"] [--each]`."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, show_table
from lmlab.cli.train import parse_settings
from lmlab.core.errors import UserError
from lmlab.core.integer_parsing import parse_integer
from lmlab.core.registry import find_system


def ablate(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="One with switches.")],
    data: Annotated[str, typer.Option(metavar="CORPUS", help="What to train on.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="The folder to write.")],
    switches: Annotated[
        str | None,
        typer.Option(metavar="SETS", help='Sets to switch off, by number or name: "4;0,4,5;4,6".'),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Every switch by itself; so if nothing is asked for.")
    ] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Every two switches together.")] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds, 0 and on.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Passes over the corpus.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="10,20", help="Epochs whose losses are told; the last.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small or base; small.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a setting of the system or of the training, in every run; repeat for "
            "several. lmlab settings SYSTEM lists them. Terms of --set off=… are off in every row.",
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Named settings that go together.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="word, char, bpe, wordpiece, or a tokenizer.json.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Ablate a system: train it whole and with terms switched off, over several seeds.

    Interrupted at any time, the same command resumes.
    """
    find_system(system)  # report a wrong name before the slow import of torch
    given, told = parse_settings(settings or []), _epochs(at)

    from lmlab.api import ablate as ablate_system
    from lmlab.experiments.ablation_tables import ablation_rich_table

    found = ablate_system(
        system,
        data=data,
        out=out,
        switches=switches,
        each=each,
        pairs=pairs,
        seeds=seeds,
        epochs=epochs,
        at=told,
        size=size,
        settings=given,
        recipe=recipe,
        tokenizer=tokenizer,
        jobs=jobs,
    )
    if as_json:
        print_json(found.as_dict())
    elif found.rows:
        show_table(ablation_rich_table(found))
        for note in found.notes:
            print(f"- {note}")
    if not found.finished:
        print(f"lmlab: stopped; the same command goes on from {out}.", file=sys.stderr)
        sys.exit(130)
    print(f"written: {out}/ablation.json, .md, .tex, .svg and .png", file=sys.stderr)


def _epochs(text: str | None) -> list[int]:
    words = [word for word in re.split(r"[,\s]+", text or "") if word]
    numbers = [number for word in words if (number := parse_integer(word)) is not None]
    if len(numbers) < len(words):
        raise UserError(f"--at takes epochs parted by commas, as in --at 10,20, and {text!r} came.")
    return numbers
