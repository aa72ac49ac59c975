"""Synthetic sentences on capitals in English ("the capital of China is Beijing"), exact entropy."""

from __future__ import annotations

from functools import cache

from lmlab.data.corpus import Corpus
from lmlab.data.languages._capital_templates import SentenceTemplate, capitals_truth
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, FiniteTruth, sampled_corpus

DESCRIPTION = "countries and their capitals in English: the capital of China is Beijing"

TEMPLATES = (
    SentenceTemplate(text="the capital of {country_en} is {capital_en}", probability=0.5),
    SentenceTemplate(text="{capital_en} is the capital of {country_en}", probability=0.2),
    SentenceTemplate(text="{country_en} has {capital_en} as its capital", probability=0.1),
    SentenceTemplate(text="{country_en} 's capital is {capital_en}", probability=0.1),
    # Not capitals, as in Chinese.
    SentenceTemplate(text="{city_en} is a city in {country_en}", probability=0.1),
)


@cache
def truth() -> FiniteTruth:
    """The true distribution: probabilities, entropy, samples; a token is a word."""
    return capitals_truth(TEMPLATES, count_tokens=lambda text: len(text.split(" ")))


def corpus(seed: int = 0, *, sentences: int = TRAIN_SENTENCES) -> Corpus:
    """Independent samples, words as tokens, with the exact entropy."""
    return sampled_corpus(
        "capitals-en",
        truth(),
        description=DESCRIPTION,
        tokenizer="word",
        sentences=sentences,
        seed=seed,
    )
