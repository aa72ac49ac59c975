"""`lmlab systems`: list the model zoo."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print_json, print_table
from lmlab.core.card import Card
from lmlab.core.registry import catalogue

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
)


def systems(as_json: JsonOption = False) -> None:
    """List all systems of the zoo, with their papers."""
    cards = list(catalogue().values())
    if as_json:
        print_json([card_record(card) for card in cards])
    else:
        print_cards(cards)


def card_record(card: Card) -> dict[str, Any]:
    """JSON record of a system."""
    whole = asdict(card)
    return {name: whole[name] for name in JSON_FIELDS}


def print_cards(cards: list[Card]) -> None:
    """Print a line per system, grouped by family."""
    rows = [
        (card.name, card.family, card.kind, card.summary)
        for card in sorted(cards, key=lambda card: (card.family, card.name))
    ]
    print_table(("system", "family", "kind", "what it is"), rows)
