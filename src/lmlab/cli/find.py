"""`lmlab find TEXT`: systems by name, alias, paper or idea; the whole card where it is one."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Annotated, Any

import typer

from lmlab.cli.output import print_table
from lmlab.cli.settings import field_help
from lmlab.cli.systems import print_cards
from lmlab.core.card import Card
from lmlab.core.errors import unknown_name
from lmlab.core.registry import catalogue, find_system, search_systems, system_module
from lmlab.core.switches import switch_words


def find(
    text: Annotated[
        list[str], typer.Argument(metavar="TEXT", help="A name, an alias, an author, an idea.")
    ],
) -> None:
    """Find systems by name, alias, paper or idea, and show all of one."""
    asked = " ".join(text)
    found = search_systems(asked)
    named = _named(asked)
    if named is None and not found:
        names = [name for card in catalogue().values() for name in (card.name, *card.aliases)]
        raise unknown_name("system", asked, names)
    if named is None and len(found) > 1:
        print_cards(found)
        return
    card = named or found[0]
    print_card(card)
    others = [other.name for other in found if other.name != card.name]
    if others:
        print(f"\nalso mentioned by: {', '.join(others)}")


def _named(asked: str) -> Card | None:
    """The system that has exactly this name or alias."""
    known = {name.lower() for card in catalogue().values() for name in (card.name, *card.aliases)}
    return find_system(asked) if asked.lower().replace("_", "-") in known else None


def print_card(card: Card) -> None:
    """Formula, paper, source, what it can do, and its settings with their values by size."""
    from lmlab.training.recipes import GENERAL

    module = system_module(card.name)
    print(f"{card.name}\n\n{inspect.getdoc(module)}\n")
    told = {
        "paper": card.paper,
        "source": card.source,
        "aliases": ", ".join(card.aliases),
        "family": card.family,
        "kind": card.kind,
        "protocols": ", ".join(card.protocols),
        "fitted by": card.fitting,
        "objectives": ", ".join(card.objectives),
        "recipes": ", ".join(dict.fromkeys([*GENERAL, *getattr(module, "RECIPES", {})])),
        "switches": switch_words(range(len(card.switches)), card.switches, none=""),
        "takes": ", ".join(f"--{name}" for name in card.needs),
        "oracle": card.oracle,
    }
    for name, value in told.items():
        if value:
            print(f"{name + ':':<12}{value}")
    print("\nsettings (--set key=value) and their values by --size:\n")
    print_settings(module)


def print_settings(module: Any) -> None:
    """A line for each setting of a system: its value at each size, and what it does."""
    helped = field_help(module.Config)
    rows = []
    for field in fields(module.Config):
        values = [_written(getattr(config, field.name)) for config in module.SIZES.values()]
        rows.append((field.name, *values, helped.get(field.name, "")))
    print_table(("setting", *module.SIZES, "what it does"), rows)


def _written(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
