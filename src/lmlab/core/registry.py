"""Model registry (the zoo): list, search and import systems; a file's name is its registration.

`zoo/lstm_sphere.py` is the system `lstm-sphere`. Cards are read from the files' syntax trees, so
that listing, searching and checking a name never import torch; only `system_module` imports.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name

ZOO = Path(__file__).parent.parent / "zoo"
REQUIRED_NAMES = ("CARD", "Config", "SIZES", "build")
"""Names that every file of the zoo declares."""


def _read_card(path: Path) -> Card:
    """The card of a zoo file; raises a UserError that names the file if it can't be read."""
    try:
        return _parsed_card(path)
    except (SyntaxError, ValueError, TypeError) as error:
        reason = getattr(error, "msg", None) or error
        raise UserError(f"{path} can't be read as a file of the zoo ({reason}); fix it.") from error


def _parsed_card(path: Path) -> Card:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CARD":
            if not isinstance(node.value, ast.Call):
                raise ValueError("CARD is not a call of Card")
            values = {str(item.arg): ast.literal_eval(item.value) for item in node.value.keywords}
            docstring = ast.get_docstring(tree) or ""
            name = path.stem.replace("_", "-")
            return Card(name=name, summary=docstring.partition("\n")[0], **values)
    raise ValueError("it declares no CARD")


@cache
def catalogue() -> dict[str, Card]:
    """Every system of the zoo by name, sorted."""
    files = sorted(path for path in ZOO.glob("*.py") if not path.name.startswith("_"))
    cards = [_read_card(path) for path in files]
    return {card.name: card for card in sorted(cards, key=lambda card: card.name)}


def find_system(name: str) -> Card:
    """The card of a system, by its name or an alias, in any case."""
    if not isinstance(name, str):
        raise UserError(
            f"a system is given by its name, such as 'lstm', got {type(name).__name__}; to use a "
            "torch module, see lmlab.wrap."
        )
    normalised = name.lower().replace("_", "-")
    for card in catalogue().values():
        if normalised == card.name or normalised in (alias.lower() for alias in card.aliases):
            return card
    names = [known for card in catalogue().values() for known in (card.name, *card.aliases)]
    raise unknown_name("system", name, names, "lmlab systems")


def search_systems(text: str) -> list[Card]:
    """Cards that mention every word of a text, anywhere: name, alias, summary, paper, source."""
    words = text.lower().split()

    def haystack(card: Card) -> str:
        parts = (card.name, *card.aliases, card.family, card.summary, card.paper, card.source)
        return " ".join(parts).lower()

    return [card for card in catalogue().values() if all(w in haystack(card) for w in words)]


def system_module(name: str) -> ModuleType:
    """The imported zoo file of a system: its Config, SIZES and build."""
    card = find_system(name)
    module = importlib.import_module("lmlab.zoo." + card.name.replace("-", "_"))
    missing = [required for required in REQUIRED_NAMES if not hasattr(module, required)]
    if missing:
        raise UserError(
            f"{module.__file__} declares no {' and no '.join(missing)}; see docs/add-a-system.md."
        )
    return module


def full_card(module: ModuleType) -> Card:
    """The CARD of an imported zoo file with its name and summary, as the catalogue gives it."""
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    return replace(module.CARD, name=name, summary=summary)
