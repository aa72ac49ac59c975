"""Skip-bigram mixture: a latent earlier word and one of R latent matrices, both summed out.

    p(s_i = k | s_<i) = Σ_{a<i} P(a | i) Σ_{r=1..R} π_r softmax_k(e(k) · W_r e(s_a) + b_k)

Different relations (subject and verb, noun and adjective) can have different matrices. The type is
independent of the parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import LearnedPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (mixed-order Markov models)",
    source="003 DLM6",
    aliases=("DLM6",),
    protocols=("LogProb", "Step"),
    oracle="brute force over parents and kinds: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LearnedPriorConfig):
    """Settings of the latent-parent model with relation types."""

    types: int = field(default=2, metadata={"at_least": 1})
    """R, relation types."""


SIZES = {
    "tiny": Config(width=16, length=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, length=64, types=4, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    backbone = parts.make_latent_parents(
        config, embedding, LearnedPrior(config.length), types=config.types
    )
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
