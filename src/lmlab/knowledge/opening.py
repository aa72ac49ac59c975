"""From what a user writes (`--knowledge KNOWLEDGE`) to what is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from lmlab.core.errors import unknown_name
from lmlab.data.languages._countries import pairs
from lmlab.knowledge.knowledge import Alias, Entity, Fact, Knowledge


def open_knowledge(spec: str | Path) -> Knowledge:
    """The knowledge that a specification names: a built-in one (`capitals`)."""
    if str(spec) in BUILT_IN:
        return BUILT_IN[str(spec)]()
    raise unknown_name("knowledge", str(spec), BUILT_IN)


@cache
def knowledge_of_capitals() -> Knowledge:
    """Countries, their capitals, and which is the capital of which."""
    names: dict[str, None] = {}
    for each in pairs():
        names.update(dict.fromkeys((each.country_en, each.capital_en)))
    numbers = {name: number for number, name in enumerate(names)}
    facts = [(numbers[each.country_en], numbers[each.capital_en]) for each in pairs()]
    return Knowledge(
        entities=tuple(Entity(name=name, title=name) for name in names),
        relations=("capital", "capital of"),
        aliases=tuple(Alias(name, number, 1.0) for name, number in numbers.items()),
        facts=tuple(
            fact
            for country, capital in facts
            for fact in (Fact(country, 0, capital), Fact(capital, 1, country))
        ),
    )


BUILT_IN: dict[str, Callable[[], Knowledge]] = {"capitals": knowledge_of_capitals}
