"""Unigram interpolated with a mixture of K log-bilinear bigrams (latent transition types).

p(s_i | s_{i-1}) = λ Q(s_i) + (1 - λ) Σ_{r=1..K} π_r W_r(s_i | s_{i-1}),  λ = 1/2 or learned
Q = softmax_k(e(k) · q + b_k),  W_r = softmax_k(e(k) · W_r e(s_{i-1}) + b_k)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import Renewal, UniformPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Jelinek and Mercer 1980 (linear interpolation)",
    source="003 DLM8",
    aliases=("DLM8",),
    protocols=("LogProb", "Step"),
    oracle="brute force over kinds: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the renewal model with transition types."""

    types: int = field(default=4, metadata={"at_least": 1})
    """K, transition types."""
    learned_weight: bool = False
    """Whether λ is learned, initialised to 1/2; else fixed."""


SIZES = {
    "tiny": Config(width=16, types=2, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, types=8, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    previous = parts.make_latent_parents(
        config, embedding, UniformPrior(max_distance=1), types=config.types
    )
    backbone = Renewal(previous, learned=config.learned_weight)
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
