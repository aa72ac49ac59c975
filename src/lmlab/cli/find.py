"""`lmlab find TEXT`: search by name or idea; a system's name shows its full card."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, print_table
from lmlab.cli.settings import print_settings
from lmlab.core.card import Card
from lmlab.core.errors import UserError, nearest_names
from lmlab.core.registry import catalogue, find_system, search_systems, system_module
from lmlab.core.search import SearchHit, search
from lmlab.core.switches import describe_switches


def find(
    text: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", help="A system's name or alias, or words of an idea."),
    ],
    limit: Annotated[int, typer.Option(min=1, help="Show this many results at most.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Search systems, commands, settings, classes, docs and terms; show one system by name."""
    query = " ".join(text)
    card = _named(query)
    if card is not None and not as_json:
        print_card(card)
        others = [other.name for other in search_systems(query) if other.name != card.name]
        if others:
            print(f"\nalso mentioned by: {', '.join(others)}")
        return
    hits = search(query, limit)
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


def _named(asked: str) -> Card | None:
    """The system with exactly this name or alias."""
    known = {name.lower() for card in catalogue().values() for name in (card.name, *card.aliases)}
    return find_system(asked) if asked.lower().replace("_", "-") in known else None


def print_card(card: Card) -> None:
    """Print a card: formula, paper, source, capabilities, and settings by size."""
    from lmlab.training.recipes import GENERAL_RECIPES
    from lmlab.training.setting_records import system_settings

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
        "recipes": ", ".join(dict.fromkeys([*GENERAL_RECIPES, *getattr(module, "RECIPES", {})])),
        "switches": describe_switches(range(len(card.switches)), card.switches, none=""),
        "takes": ", ".join(f"--{name}" for name in card.needs),
        "oracle": card.oracle,
    }
    for name, value in told.items():
        if value:
            print(f"{name + ':':<12}{value}")
    print()
    print_settings(system_settings(card.name))
