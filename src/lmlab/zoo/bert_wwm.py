"""BERT with whole-word masking (all pieces of a word together) and next-sentence prediction.

    loss = -Σ_{t masked} log p(s_t | unmasked tokens) - log p(next or not | h_0)

A single masked piece can be guessed from the spelling of its word; a whole word cannot. Where the
tokenizer has words or ideographs as tokens it equals BERT.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.readers import Example
from lmlab.models.masked_lm import BERT
from lmlab.objectives.masking.whole_word_masking import WholeWordMasking, WordUnits
from lmlab.zoo._masked_lm import SentencePairConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Cui et al. 2019, Pre-Training with Whole Word Masking for Chinese BERT",
    source="004 §1.3.3",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="whole words only, by every tokenizer: tests/unit/objectives/test_whole_word_masking.py",
)

Config = SentencePairConfig
SIZES = make_sizes(Config, tiny={"width": 12})
RECIPES = TRANSFORMER_RECIPES

EXAMPLE = Example(
    "un ##happ ##y kitten ##s were play ##ing on the door ##mat , so they were warm ##er ."
)
"""Contains words of several pieces."""


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    words = WordUnits(vocabulary)
    return build_masked_lm(config, vocabulary, WholeWordMasking(words, config.rate), units=words)
