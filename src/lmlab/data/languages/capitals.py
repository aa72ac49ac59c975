"""Synthetic sentences on capitals in Chinese (中国的首都是北京), by templates, exact entropy.

Every text's probability is known, p(template) p(country | template), so a model's regret is exact:
in 甲甲的首都是乙乙 the two masked names depend on each other completely.
"""

from __future__ import annotations

from functools import cache

from lmlab.data.corpus import Corpus
from lmlab.data.languages._capital_templates import SentenceTemplate, capitals_truth
from lmlab.data.languages._sampled_corpus import TRAIN_SENTENCES, FiniteTruth, sampled_corpus

DESCRIPTION = "countries and their capitals in Chinese: 中国的首都是北京"

TEMPLATES = (
    SentenceTemplate(text="{country_zh}的首都是{capital_zh}", probability=0.5),
    SentenceTemplate(text="{capital_zh}是{country_zh}的首都", probability=0.2),
    SentenceTemplate(text="{country_zh}的首都叫{capital_zh}", probability=0.1),
    SentenceTemplate(text="{country_zh}定都{capital_zh}", probability=0.1),
    # Not capitals: 上海 becomes a word of the language, while 中国的首都是上海 has probability 0.
    SentenceTemplate(text="{city_zh}是{country_zh}的城市", probability=0.1),
)


@cache
def truth() -> FiniteTruth:
    """The true distribution: probabilities, entropy, samples; a token is a character."""
    return capitals_truth(TEMPLATES, count_tokens=len)


def corpus(seed: int = 0, *, sentences: int = TRAIN_SENTENCES) -> Corpus:
    """Independent samples, characters as tokens, with the exact entropy."""
    return sampled_corpus(
        "capitals",
        truth(),
        description=DESCRIPTION,
        tokenizer="char",
        sentences=sentences,
        seed=seed,
    )
