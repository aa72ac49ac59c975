"""Knowledge base of countries, capitals and cities, matching the capitals corpora."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from lmlab.data.countries import (
    Country,
    country_table,
)
from lmlab.data.languages.capitals_told import countries_with_capital_unstated
from lmlab.knowledge.knowledge_base import (
    Alias,
    Entity,
    Fact,
    KnowledgeBase,
)

CAPITAL_RELATIONS = ("capital", "capital of", "city", "city of", "in Chinese", "in English")
"""Relations; each is followed by its inverse."""


@cache
def capitals_knowledge() -> KnowledgeBase:
    """Countries, their capitals and other cities, which belongs to which, and their Chinese names.

    A Chinese name is an entity of its own, so that naming is a relation too.
    """
    names: dict[str, None] = {}
    for each in country_table():
        names.update(dict.fromkeys((each.country_en, each.capital_en)))
    names.update(dict.fromkeys(each.city_en for each in country_table() if each.city_en))
    for each in country_table():
        names.update(dict.fromkeys((each.country_zh, each.capital_zh)))
    numbers = {name: number for number, name in enumerate(names)}
    return KnowledgeBase(
        entities=tuple(Entity(name=name, title=name) for name in names),
        relations=CAPITAL_RELATIONS,
        aliases=tuple(Alias(name, number, 1.0) for name, number in numbers.items()),
        facts=tuple(
            dict.fromkeys(fact for each in country_table() for fact in _facts(each, numbers))
        ),
    )


@cache
def stated_capitals_knowledge() -> KnowledgeBase:
    """The same without the capitals that the corpus `capitals-told` does not state."""
    whole = capitals_knowledge()
    left_out = {whole.number(each.country_en) for each in countries_with_capital_unstated()}
    return replace(whole, facts=tuple(each for each in whole.facts if not _is_of(each, left_out)))


def _facts(country: Country, numbers: dict[str, int]) -> list[Fact]:
    """Facts of a country, in both directions."""
    told = (
        (country.country_en, "capital", country.capital_en),
        (country.country_en, "city", country.city_en),
        (country.country_en, "in Chinese", country.country_zh),
        (country.capital_en, "in Chinese", country.capital_zh),
    )
    found = []
    for subject, name, object in told:
        if object:
            relation, pair = CAPITAL_RELATIONS.index(name), (numbers[subject], numbers[object])
            found.append(Fact(pair[0], relation, pair[1]))
            found.append(Fact(pair[1], relation + 1, pair[0]))
    return found


def _is_of(fact: Fact, countries: Collection[int]) -> bool:
    """Whether a fact states the capital of one of some countries, in either direction."""
    if fact.relation == CAPITAL_RELATIONS.index("capital"):
        return fact.subject in countries
    return fact.relation == CAPITAL_RELATIONS.index("capital of") and fact.object in countries
