"""ALBERT: BERT with cross-layer sharing, factorised embeddings and sentence-order prediction.

    loss = -Σ_{t masked} log p(s_t | unmasked tokens) - log p(in order or swapped | h_0)

Token embeddings of size 128 are projected to the width, and all layers share their parameters: a
base model has a ninth of BERT's. Masked are n-grams of one to three words, p(n) ∝ 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.feed_forward import ActivationName
from lmlab.models.masked_lm import BERT
from lmlab.objectives.masking.span_masking import SpanMasking, harmonic_lengths
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.zoo._masked_lm import SentencePairConfig, SentencePairName, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Lan et al. 2020, ALBERT: A Lite BERT",
    source="004 §1.2.3.5",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="transformers' ALBERT with the same weights: tests/parity/test_hf_albert.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(SentencePairConfig):
    """Settings of ALBERT."""

    pairs: SentencePairName = "order"
    """next: next-sentence prediction; order: sentence-order prediction; none: single texts."""
    shared_layers: bool = True
    """Cross-layer parameter sharing."""
    embedding_width: int = field(default=64, metadata={"at_least": 0})
    """Factorised embedding size, projected to width; 0 for width."""
    activation: ActivationName = "gelu-tanh"
    """gelu, gelu-tanh, relu, silu or tanh."""
    max_span_length: int = field(default=3, metadata={"at_least": 1})
    """Maximum length of a masked n-gram, in words."""


SIZES = make_sizes(Config, tiny={"width": 12, "embedding_width": 8}, base={"embedding_width": 128})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    words = WordUnits(vocabulary)
    lengths = harmonic_lengths(config.max_span_length)
    masking = SpanMasking(units=words, rate=config.rate, lengths=lengths)
    return build_masked_lm(config, vocabulary, masking, units=words)
