"""What is known of countries, their capitals and other cities, as the languages speak of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from lmlab.data.languages._countries import Country, pairs
from lmlab.data.languages.capitals_told import unstated
from lmlab.knowledge.knowledge import Alias, Entity, Fact, Knowledge

RELATIONS = ("capital", "capital of", "city", "city of")


@cache
def knowledge_of_capitals() -> Knowledge:
    """Countries, their capitals and other cities, and which belongs to which."""
    names: dict[str, None] = {}
    for each in pairs():
        names.update(dict.fromkeys((each.country_en, each.capital_en)))
    names.update(dict.fromkeys(each.city_en for each in pairs() if each.city_en))
    numbers = {name: number for number, name in enumerate(names)}
    return Knowledge(
        entities=tuple(Entity(name=name, title=name) for name in names),
        relations=RELATIONS,
        aliases=tuple(Alias(name, number, 1.0) for name, number in numbers.items()),
        facts=tuple(fact for each in pairs() for fact in _facts(each, numbers)),
    )


@cache
def knowledge_of_stated_capitals() -> Knowledge:
    """The same without the capitals that the corpus `capitals-told` does not state."""
    whole = knowledge_of_capitals()
    left_out = {whole.number(each.country_en) for each in unstated()}
    return replace(whole, facts=tuple(each for each in whole.facts if not _is_of(each, left_out)))


def _facts(country: Country, numbers: dict[str, int]) -> list[Fact]:
    """What is known of a country, both ways."""
    subject, found = numbers[country.country_en], []
    for relation, city in ((0, country.capital_en), (2, country.city_en)):
        if city:
            found.append(Fact(subject, relation, numbers[city]))
            found.append(Fact(numbers[city], relation + 1, subject))
    return found


def _is_of(fact: Fact, countries: Collection[int]) -> bool:
    """Whether a fact tells the capital of one of some countries, in either direction."""
    if fact.relation == RELATIONS.index("capital"):
        return fact.subject in countries
    return fact.relation == RELATIONS.index("capital of") and fact.object in countries
