"""`lmlab systems`, `lmlab settings [SYSTEM]` and `lmlab find TEXT`, a search by name or idea."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, print_table
from lmlab.cli.terminal import terminal
from lmlab.core.card import Card
from lmlab.core.errors import UserError, nearest_names
from lmlab.core.registry import catalogue, find_system, search_systems, system_module
from lmlab.core.search import SearchHit
from lmlab.core.switches import describe_switches
from lmlab.core.system_files import register
from lmlab.verbs import catalogue as verbs

if TYPE_CHECKING:
    from lmlab.training.setting_records import SettingRecord


@terminal(verbs.settings)
def settings(as_json: JsonOption = False, **options: Any) -> None:
    records = verbs.settings(**options)
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


JSON_FIELDS = (
    "name",
    "aliases",
    "family",
    "kind",
    "paper",
    "source",
    "summary",
    "fitting",
    "protocols",
    "switches",
    "package",
)


@terminal(verbs.systems)
def systems(as_json: JsonOption = False) -> None:
    cards = verbs.systems()
    if as_json:
        print_json([card_record(card) for card in cards])
    else:
        print_cards(cards)


def card_record(card: Card) -> dict[str, Any]:
    """JSON record of a system."""
    record = asdict(card)
    return {name: record[name] for name in JSON_FIELDS}


def print_cards(cards: list[Card]) -> None:
    """Print a line per system, grouped by family; with its package if there are plug-ins."""
    has_plugins = any(card.package for card in cards)
    rows = [
        (card.name, card.family, card.kind_of_score, *(card.package,) * has_plugins, card.summary)
        for card in sorted(cards, key=lambda card: (card.family, card.name))
    ]
    package = ("package",) * has_plugins
    print_table(("system", "family", "kind", *package, "what it is"), rows)


@terminal(verbs.find, without=("text",))
def find(
    text: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", help="A system's name or alias, or words of an idea."),
    ],
    as_json: JsonOption = False,
    *,
    limit: int,
) -> None:
    query = " ".join(text)
    card = _system_named(query)
    if card is not None and not as_json:
        print_card(card)
        others = [other.name for other in search_systems(query) if other.name != card.name]
        if others:
            print(f"\nalso mentioned by: {', '.join(others)}")
        return
    hits = verbs.find(query, limit=limit)
    if as_json:
        print_json([hit.as_dict() for hit in hits])
    elif hits:
        print_hits(hits)
    else:
        raise no_match_error(query)


def print_hits(hits: Sequence[SearchHit]) -> None:
    """Print a line per result: kind, name, summary and file."""
    rows = [(hit.kind, hit.name, hit.excerpt, hit.where) for hit in hits]
    print_table(("kind", "name", "what it is", "where"), rows)
    if any(hit.kind == "system" for hit in hits):
        print("\nlmlab find NAME shows the whole card of a system.")


def no_match_error(query: str) -> UserError:
    """The error if nothing matches, with similar names of systems and settings."""
    names = [name for card in catalogue().values() for name in (card.name, *card.aliases)]
    close = nearest_names(query, names)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "try other words."
    return UserError(f"nothing matches {query!r}; {hint}")


def _system_named(query: str) -> Card | None:
    """The system with exactly this name or alias, or in this file."""
    if query.endswith(".py"):
        return register(query)
    known = {name.lower() for card in catalogue().values() for name in (card.name, *card.aliases)}
    return find_system(query) if query.lower().replace("_", "-") in known else None


def print_card(card: Card) -> None:
    """Print a card: formula, paper, source, capabilities, and settings by size."""
    from lmlab.training.config import GENERAL_RECIPES
    from lmlab.training.setting_records import system_settings

    module = system_module(card.name)
    print(f"{card.name}\n\n{inspect.getdoc(module)}\n")
    fields = {
        "package": card.package,
        "paper": card.paper,
        "source": card.source,
        "aliases": ", ".join(card.aliases),
        "family": card.family,
        "kind": card.kind_of_score,
        "protocols": ", ".join(card.protocols),
        "fitted by": card.fitting,
        "objectives": ", ".join(card.objectives),
        "recipes": ", ".join(dict.fromkeys([*GENERAL_RECIPES, *getattr(module, "RECIPES", {})])),
        "switches": describe_switches(range(len(card.switches)), card.switches, none=""),
        "takes": ", ".join(f"--{name}" for name in card.needs),
        "oracle": card.oracle,
    }
    for name, value in fields.items():
        if value:
            print(f"{name + ':':<12}{value}")
    print()
    print_settings(system_settings(card.name))
