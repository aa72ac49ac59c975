"""Transformer-XL: a causal Transformer that remembers the segments before, by relative positions.

    score_ij = (W_q h_i + u) · W_kE h_j + (W_q h_i + v) · W_kR R_{i-j},  R sines and cosines
    h^n_τ+1 = Layer(query = h^n-1_τ+1, keys and values = [SG(h^n-1_τ), h^n-1_τ+1])

Contiguous text carries its memory from batch to batch (`span` tokens each), without gradient (SG);
a text longer than `length` does so by itself. Memory lengths in training and in evaluation are two
settings. In evaluation each place sees `memory_evaluation` places before it and no more, so that
scores do not depend on how a text is cut. Scores are divided by √D, the root of the head's width;
004 writes them for one head and before that, the paper's u and v have a part for each head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.core.writing import Writing
from lmlab.layers.feed_forward import ActivationName
from lmlab.objectives.next_token import NextToken
from lmlab.zoo._sampled import SampledConfig
from lmlab.zoo._segments import SEGMENT_RECIPES, SegmentConfig, make_segment_recurrent
from lmlab.zoo._transformer import make_softmax, make_tokens

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length "
    "Context",
    source="004 §1.3.2",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="equation 3 by loops, full attention where the memory covers the past, transformers' "
    "XLNet with one direction: tests/parity/test_transformer_xl.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(SampledConfig, SegmentConfig):
    """Settings of Transformer-XL."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    attention_biases: bool = False
    """Whether attention's linear maps have biases."""
    activation: ActivationName = "relu"
    """gelu, gelu-tanh, relu, silu or tanh."""


TINY = Config(width=16, layers=2, heads=2, length=8, memory=8, memory_evaluation=16)
SIZES = {
    "tiny": replace(TINY, dropout=0.0, attention_dropout=0.0),
    "small": Config(),
    # The paper's standard model of WikiText-103.
    "base": Config(
        width=410, layers=16, heads=10, inner=2100, length=150, memory=150, memory_evaluation=640
    ),
}
RECIPES = SEGMENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Writing:
    tokens = make_tokens(config, vocabulary)
    system = Writing(
        vocabulary=vocabulary,
        backbone=make_segment_recurrent(config, tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=NextToken(),
    )
    system.remembers = config.memory_evaluation
    return system
