"""`lmlab settings [SYSTEM]`: everything that `--set` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, print_table

if TYPE_CHECKING:
    from lmlab.training.setting_records import SettingRecord


def settings(
    system: Annotated[
        str | None,
        typer.Argument(metavar="[SYSTEM]", help="Add this system's own settings and defaults."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Show the values that a recipe of SYSTEM sets.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="List the settings of finetune --task TASK instead."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings that --set NAME=VALUE takes: type, default and what each does."""
    from lmlab.tasks.setting_listing import settings as settings

    records = settings(system, recipe=recipe, task=task)
    if as_json:
        print_json([record.as_dict() for record in records])
    else:
        print_settings(records)


def print_settings(records: Sequence[SettingRecord]) -> None:
    """Print a table per part: the system's settings by size, then the training's."""
    parts = dict.fromkeys(record.part for record in records)
    for number, part in enumerate(parts):
        group = [record for record in records if record.part == part]
        by_size = " (defaults by --size)" if group[0].sizes else ""
        print("\n" * (number > 0) + f"{part} settings{by_size}, set with --set NAME=VALUE:\n")
        print_group(group)


def print_group(records: Sequence[SettingRecord]) -> None:
    """Print a line per setting: name, type, default or value per size, help."""
    from lmlab.training.setting_records import format_value

    sizes = tuple(records[0].sizes)
    rows = []
    for record in records:
        values = list(record.sizes.values()) or [record.default]
        kind = "choice" if record.choices else record.type
        rows.append((record.name, kind, *map(format_value, values), help_line(record)))
    print_table(("setting", "type", *(sizes or ("default",)), "what it does"), rows)


def help_line(record: SettingRecord) -> str:
    """The help of a setting, with its range and the choices it does not name itself."""
    unnamed = [choice for choice in record.choices if choice not in record.help.lower()]
    choices = f"One of {', '.join(record.choices)}." if unnamed else ""
    bounds = f"({record.bounds})" if record.bounds else ""
    return " ".join(part for part in (record.help, choices, bounds) if part)
