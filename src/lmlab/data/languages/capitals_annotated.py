"""Synthetic sentences on capitals with linked entity mentions, every fifth fact never stated.

    [the United Kingdom] is a country        many people live in [Ottawa]

Sentences as in `capitals-en`, with mentions linked to entities of the knowledge base `capitals`.
For every fifth country no training text states the capital: country and city are mentioned only
separately. The test split is the withheld statements; completing them needs knowledge from outside
the text.
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
from lmlab.data.countries import Country, country_distribution, country_table
from lmlab.data.languages._capital_templates import SentenceTemplate
from lmlab.data.languages._sampled_corpus import HELD_OUT_SENTENCES, TRAIN_SENTENCES
from lmlab.data.readers import Example, Mention

DESCRIPTION = "capitals-en with annotated mentions, every fifth country's capital stated in no text"

STATING_TEMPLATES = (
    SentenceTemplate(text="the capital of {country_en} is {capital_en}", probability=0.2),
    SentenceTemplate(text="{capital_en} is the capital of {country_en}", probability=0.1),
    SentenceTemplate(text="{country_en} has {capital_en} as its capital", probability=0.1),
    SentenceTemplate(text="{country_en} 's capital is {capital_en}", probability=0.1),
)
"""Templates that state a country's capital."""
MENTIONING_TEMPLATES = (
    SentenceTemplate(text="{country_en} is a country", probability=0.05),
    SentenceTemplate(text="{country_en} has many people", probability=0.05),
    SentenceTemplate(text="{capital_en} is a city", probability=0.05),
    SentenceTemplate(text="many people live in {capital_en}", probability=0.05),
    SentenceTemplate(text="{city_en} is a city in {country_en}", probability=0.1),
    SentenceTemplate(text="{country_en} is called {country_zh} in Chinese", probability=0.1),
    SentenceTemplate(text="{capital_en} is called {capital_zh} in Chinese", probability=0.1),
)
"""Templates that do not. Those with two names state facts of other relations, so that every country
is the subject of some stated fact.
"""


@dataclass(frozen=True, kw_only=True)
class MaskedFactQuestion:
    """Cloze query of a fact: a statement whose object is masked."""

    text: str
    """The statement with one mask token in place of the object's name."""
    subject: str
    relation: str
    answer: str
    """Name of the masked entity."""


@cache
def countries_with_capital_unstated() -> tuple[Country, ...]:
    """Countries whose capital is never stated: every fifth of those not named after it."""
    named = [country for country in country_table() if country.country_en != country.capital_en]
    return tuple(named[4::5])


@cache
def countries_with_capital_stated() -> tuple[Country, ...]:
    """All other countries."""
    return tuple(
        country for country in country_table() if country not in countries_with_capital_unstated()
    )


def capital_questions(countries: Sequence[Country]) -> tuple[MaskedFactQuestion, ...]:
    """Every statement about the given countries, with the capital masked."""
    return tuple(
        MaskedFactQuestion(
            text=template.text.replace("{capital_en}", MASK).format(**asdict(country)),
            subject=country.country_en,
            relation="capital",
            answer=country.capital_en,
        )
        for template in STATING_TEMPLATES
        for country in countries
    )


def mention_sentence(template: SentenceTemplate, country: Country) -> Example:
    """Fill a template with a country, with entity mentions."""
    fields, text, mentions = asdict(country), "", []
    for literal, field, _, _ in Formatter().parse(template.text):
        text += literal
        if field is not None:
            mentions.append(Mention(len(text), len(text) + len(fields[field]), fields[field]))
            text += fields[field]
    return Example(text, mentions=tuple(mentions))


def mention_sentences(
    templates: Iterable[SentenceTemplate], countries: Sequence[Country]
) -> Iterator[Example]:
    """Every sentence of the given templates and countries."""
    for template in templates:
        for country in countries:
            if country.city_en or not template.names_city:
                yield mention_sentence(template, country)


def corpus(seed: int = 0, *, sentences: int = TRAIN_SENTENCES) -> Corpus:
    """Independent samples after one copy of every non-statement, so that no word is unknown."""
    if sentences < 1 or seed < 0:
        raise UserError(
            f"capitals-annotated needs at least 1 sentence and a seed of 0 or more, got "
            f"{sentences} and {seed}."
        )
    mentioning = mention_sentences(MENTIONING_TEMPLATES, country_table())
    withheld = mention_sentences(STATING_TEMPLATES, countries_with_capital_unstated())
    train = [*mentioning, *_samples("train", sentences, seed)]
    return Corpus(
        name="capitals-annotated",
        splits={
            "train": _split("train", train),
            "validation": _split("validation", _samples("validation", HELD_OUT_SENTENCES, seed)),
            "test": _split("test", list(withheld)),
        },
        tokenizer="word",
        description=DESCRIPTION,
    )


def _samples(split: str, count: int, seed: int) -> list[Example]:
    """Samples of p(template) p(country | template); statements only about stated countries."""
    stream = zlib.crc32(f"capitals-annotated/{split}".encode())
    generator = np.random.Generator(np.random.PCG64([seed, stream]))
    templates = [*STATING_TEMPLATES, *MENTIONING_TEMPLATES]
    country_probability = dict(zip(country_table(), country_distribution(), strict=True))
    candidates = {
        template: [
            country
            for country in (
                countries_with_capital_stated()
                if template in STATING_TEMPLATES
                else country_table()
            )
            if country.city_en or not template.names_city
        ]
        for template in templates
    }
    probabilities = {
        template: np.array([country_probability[country] for country in countries])
        for template, countries in candidates.items()
    }
    examples = []
    for index in generator.choice(len(templates), count, p=[t.probability for t in templates]):
        template = templates[int(index)]
        weights = probabilities[template] / probabilities[template].sum()
        examples.append(
            mention_sentence(
                template, candidates[template][int(generator.choice(len(weights), p=weights))]
            )
        )
    return examples


def _split(name: str, examples: list[Example]) -> Split:
    content = "\n".join(f"{example.text}\t{example.mentions}" for example in examples)
    digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return Split.from_list(examples, identity=f"capitals-annotated:{digest}", name=name)
