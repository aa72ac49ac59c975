"""RoBERTa: BERT with dynamic masking and without sentence pairs; packed full sentences optional.

    loss = -Σ_{t masked} log p(s_t | unmasked tokens)

The paper's full sentences and larger batches are the recipe `full-sentences`: as many texts of a
batch as fit are packed into an input. Without it an input is one text. Hugging Face's position
tables begin with two unused rows; ours do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import BERT
from lmlab.zoo._masked_lm import MaskedLMConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Liu et al. 2019, RoBERTa: A Robustly Optimized BERT Pretraining Approach",
    source="004 §1.2.3.5",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="transformers' RoBERTa with the same weights: tests/parity/test_hf_roberta.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskedLMConfig):
    """Settings of RoBERTa."""

    masking: Literal["static", "dynamic"] = "dynamic"
    """static: reuse a few masks per text in all epochs; dynamic: sample a new mask every time."""
    norm_epsilon: float = field(default=1e-5, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""
    segments: int = field(default=1, metadata={"at_least": 0})
    """Segment (token type) embeddings; 1 is a vector that all positions share."""


SIZES = make_sizes(Config, tiny={"width": 24})
RECIPES = {
    **TRANSFORMER_RECIPES,
    # Liu et al. go from 256 to 8,192 texts per batch, with a higher learning rate.
    "full-sentences": {
        **TRANSFORMER_RECIPES["glosses"],
        "learning_rate": 2e-3,
        "tokens_per_batch": 32768,
        "full_sentences": True,
    },
}


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    return build_masked_lm(config, vocabulary)
