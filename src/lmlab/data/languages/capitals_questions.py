"""Questions for the capitals of countries: every fifth country is asked for in the test alone.

    what is the capital of France ?   →   Paris

So the answer to a test question was never an answer in training: it has to come from a document,
such as those of the built-in set `capitals`. All names are in the vocabulary, whichever split they
stand in, so that a word that was never an answer can be written at all.
"""

from __future__ import annotations

import hashlib

from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.countries import (
    Country,
    country_table,
)
from lmlab.data.readers import Example

DESCRIPTION = "questions for capitals, and answers; every fifth country is held out of training"

EVERY = 5
"""One country in so many is held out."""
QUESTIONS = (
    "what is the capital of {country} ?",
    "which city is the capital of {country} ?",
    "tell me the capital of {country}",
    "{country} has which capital ?",
)
"""Ways to ask."""


def corpus() -> Corpus:
    """Each country asked for in every way; the held-out ones are the test and the validation."""
    countries = country_table()
    held_out = countries[EVERY - 1 :: EVERY]
    rest = [country for country in countries if country not in held_out]
    # The validation split may choose weights, so that it has held-out countries of its own.
    parts = {"train": rest, "validation": held_out[1::2], "test": held_out[::2]}
    splits = {}
    for name, chosen in parts.items():
        examples = [capital_question(each, question) for each in chosen for question in QUESTIONS]
        digest = hashlib.blake2b(repr(examples).encode(), digest_size=16).hexdigest()
        identity = f"capitals-questions:{digest}"
        splits[name] = Split.from_list(examples, identity=identity, name=name)
    return Corpus(
        name="capitals-questions",
        splits=splits,
        layout=Layout(kind="pairs"),
        tokenizer="word",
        vocabulary_from=tuple(parts),
        description=DESCRIPTION,
    )


def capital_question(country: Country, question: str) -> Example:
    """The capital, given a question for it."""
    return Example(country.capital_en, condition=question.format(country=country.country_en))
