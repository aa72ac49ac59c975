"""BERT: masked language modelling of 15 % of the tokens, and next-sentence prediction.

    loss = -Σ_{t masked} log p(s_t | unmasked tokens) - log p(next or not | h_0)

Of the chosen tokens 80 % become <mask>, 10 % a random token, and 10 % stay. Half of the second
segments come from another text. Masking is static: ten masks per text, sampled before training; the
negative second segments come from the same batch, so they vary.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import BERT
from lmlab.zoo._masked_lm import SentencePairConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Devlin et al. 2019, BERT",
    source="002 §3.5, 004 §1.2.3.4",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="transformers' BERT with the same weights: tests/parity/test_hf_bert.py",
)

Config = SentencePairConfig
SIZES = make_sizes(Config, tiny={"width": 12})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    return build_masked_lm(config, vocabulary)
