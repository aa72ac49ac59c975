"""Mixture of K log-bilinear n-grams, with learned mixture weights that ignore the context.

    p(s_i = k | s_<i) = Σ_{m=1..K} π_m softmax_k(e(k) · Σ_{j=1..n} W_{m,j} e(s_{i-j}) + b_k)

Tokens before the start token count as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.window import WindowMixture
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Mnih and Hinton 2007 (log-bilinear)",
    source="003 DLM4",
    aliases=("DLM4",),
    protocols=("LogProb", "Step"),
    oracle="brute force over windows: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the mixture of log-bilinear n-grams."""

    size: int = field(default=5, metadata={"at_least": 1})
    """Context size n, in tokens."""
    windows: int = field(default=5, metadata={"at_least": 1})
    """K, mixture components; a word costs K normalisers."""


SIZES = {
    "tiny": Config(width=16, size=3, windows=2, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    backbone = WindowMixture(embedding, config.size, config.windows, dropout=config.dropout)
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
