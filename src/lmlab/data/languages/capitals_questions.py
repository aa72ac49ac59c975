"""Open-domain QA pairs about capitals (question, capital); every fifth country is held out.

    what is the capital of France ?   →   Paris

The answer to a test question was never an answer in training: it must come from a retrieved
document, such as those of the built-in set `capitals`. The vocabulary covers all splits, so that
unseen answers can be generated.
"""

from __future__ import annotations

import hashlib

from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.countries import country_table
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
"""Question templates."""


def corpus() -> Corpus:
    """Each country in every question template; held-out countries form validation and test."""
    countries = country_table()
    held_out = countries[EVERY - 1 :: EVERY]
    rest = [country for country in countries if country not in held_out]
    # Validation may be used for model selection, so it has its own held-out countries.
    parts = {"train": rest, "validation": held_out[1::2], "test": held_out[::2]}
    splits = {}
    for name, chosen in parts.items():
        examples = [
            Example(country.capital_en, condition=question.format(country=country.country_en))
            for country in chosen
            for question in QUESTIONS
        ]
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
