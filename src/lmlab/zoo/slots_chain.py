"""Log-bilinear model of N attention averages of earlier words, coupled by a linear-chain CRF.

    p(s_i = k | s_<i) = softmax_k(e(k) · Σ_{m=1..N} W_m b_m + b_k),  b_m = Σ_j P(j_m = j) e(s_j)
    P(j_1 … j_N) ∝ Π_m P_m(j_m | i) exp(u_m · e(s_{j_m})) Π_m ψ(j_{m+1} - j_m)

A learned potential ψ of the move from one slot's word to the next's couples them. The marginals
P(j_m = j) are exact by forward-backward; slots still hold averages, not one tuple at a time as in
the full sum over all choices. With ψ = 1 it is `slots`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import LearnedPrior
from lmlab.backbones.slots import ChainedSlots
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Kim et al. 2017, Structured Attention Networks",
    source="003 DLM31",
    aliases=("DLM31",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="marginals over all choices, the gap to the full sum: tests/parity/test_slots.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, parts.LatentChoiceConfig):
    """Settings of the chained slots."""

    slots: int = field(default=5, metadata={"at_least": 2})
    """N, slots of the chain."""
    max_move: int = field(default=4, metadata={"at_least": 1})
    """Maximum move with its own potential, in both directions; longer ones are clipped."""
    length: int = field(default=32, metadata={"at_least": 2})
    """Positions with their own prior; later ones share the last, over `length` words."""


SIZES = {
    "tiny": Config(width=16, slots=2, max_move=2, length=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, length=64, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    priors = [LearnedPrior(config.length) for _ in range(config.slots)]
    backbone = ChainedSlots(embedding, priors, moves=config.max_move, dropout=config.dropout)
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
