"""Capitals with mentions told, and every fifth capital never stated: ground for memories of facts.

    [the United Kingdom] is a country        many people live in [Ottawa]

Sentences as in `capitals-en`, in which the corpus tells what names which entity of the knowledge
`capitals`. Of every fifth country no text says which capital it has: the country and the city are
mentioned, each by itself. The test split is the statements that were left out, so that whoever
completes them knows the fact from somewhere else than text.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from string import Formatter

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import MASK
from lmlab.data.corpus import Corpus, Split
from lmlab.data.countries import (
    Country,
    country_law,
    pairs,
)
from lmlab.data.languages._capital_templates import Template
from lmlab.data.languages._sampled_corpus import (
    HELD_OUT,
    SENTENCES,
)
from lmlab.data.readers import Example, Mention

DESCRIPTION = "capitals-en with mentions told, every fifth country's capital stated in no text"

STATING = (
    Template(text="the capital of {country_en} is {capital_en}", probability=0.2),
    Template(text="{capital_en} is the capital of {country_en}", probability=0.1),
    Template(text="{country_en} has {capital_en} as its capital", probability=0.1),
    Template(text="{country_en} 's capital is {capital_en}", probability=0.1),
)
"""Sentences that say which capital a country has."""
MENTIONING = (
    Template(text="{country_en} is a country", probability=0.05),
    Template(text="{country_en} has many people", probability=0.05),
    Template(text="{capital_en} is a city", probability=0.05),
    Template(text="many people live in {capital_en}", probability=0.05),
    Template(text="{city_en} is a city in {country_en}", probability=0.1),
    Template(text="{country_en} is called {country_zh} in Chinese", probability=0.1),
    Template(text="{capital_en} is called {capital_zh} in Chinese", probability=0.1),
)
"""Sentences that do not. Those with two names are facts of other kinds, so that every country is
the subject of some fact that texts do state."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A statement whose object is hidden."""

    text: str
    """With one mask symbol where the object's name stood."""
    subject: str
    relation: str
    answer: str
    """The entity that was hidden, by its name."""


@cache
def unstated() -> tuple[Country, ...]:
    """The countries whose capital no text states: every fifth, where the two have two names."""
    named = [each for each in pairs() if each.country_en != each.capital_en]
    return tuple(named[4::5])


@cache
def stated() -> tuple[Country, ...]:
    """All others."""
    return tuple(each for each in pairs() if each not in unstated())


def questions(countries: Sequence[Country]) -> tuple[Question, ...]:
    """Every statement about some countries, with the capital hidden."""
    return tuple(
        Question(
            text=template.text.replace("{capital_en}", MASK).format(**asdict(country)),
            subject=country.country_en,
            relation="capital",
            answer=country.capital_en,
        )
        for template in STATING
        for country in countries
    )


def tell(template: Template, country: Country) -> Example:
    """The sentence about a country, with what its words name."""
    fields, text, mentions = asdict(country), "", []
    for literal, field, _, _ in Formatter().parse(template.text):
        text += literal
        if field is not None:
            mentions.append(Mention(len(text), len(text) + len(fields[field]), fields[field]))
            text += fields[field]
    return Example(text, mentions=tuple(mentions))


def sentences(templates: Iterable[Template], countries: Sequence[Country]) -> Iterator[Example]:
    """Every sentence that some templates make about some countries."""
    for template in templates:
        for country in countries:
            if country.city_en or not template.names_city:
                yield tell(template, country)


def corpus(seed: int = 0, *, sentences: int = SENTENCES) -> Corpus:
    """Independent draws, after every sentence that is no statement once: no word is unknown."""
    if sentences < 1 or seed < 0:
        raise UserError(
            "capitals-told needs at least 1 sentence and a seed of 0 or more, not "
            f"{sentences} and {seed}."
        )
    train = [*_every_mention(), *_drawn("train", sentences, seed)]
    return Corpus(
        name="capitals-told",
        splits={
            "train": _split("train", train),
            "validation": _split("validation", _drawn("validation", HELD_OUT, seed)),
            "test": _split("test", _left_out()),
        },
        tokenizer="word",
        description=DESCRIPTION,
    )


def _every_mention() -> list[Example]:
    return list(sentences(MENTIONING, pairs()))


def _left_out() -> list[Example]:
    return list(sentences(STATING, unstated()))


def _drawn(split: str, count: int, seed: int) -> list[Example]:
    """p(template) p(country | template), of a statement only those countries that may be stated."""
    stream = zlib.crc32(f"capitals-told/{split}".encode())
    generator = np.random.Generator(np.random.PCG64([seed, stream]))
    templates = [*STATING, *MENTIONING]
    law = dict(zip(pairs(), country_law(), strict=True))
    fitting = {
        template: [
            country
            for country in (stated() if template in STATING else pairs())
            if country.city_en or not template.names_city
        ]
        for template in templates
    }
    chances = {
        template: np.array([law[country] for country in countries])
        for template, countries in fitting.items()
    }
    found = []
    for which in generator.choice(len(templates), count, p=[t.probability for t in templates]):
        template = templates[int(which)]
        weights = chances[template] / chances[template].sum()
        found.append(
            tell(template, fitting[template][int(generator.choice(len(weights), p=weights))])
        )
    return found


def _split(name: str, examples: list[Example]) -> Split:
    told = "\n".join(f"{each.text}\t{each.mentions}" for each in examples)
    digest = hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
    return Split.listed(examples, identity=f"capitals-told:{digest}", name=name)
