"""Skip-bigram mixture: the source is a latent word of the last n, uniform prior, shared matrix.

    p(s_i = k | s_<i) = Σ_a P(a) softmax_k(e(k) · W e(s_a) + b_k), P(a) uniform

The posterior over a is a guess at a dependency tree. At the start of a sentence the prior is
uniform over the tokens that exist, so that it sums to one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.latent_parents import UniformPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (mixed-order Markov models)",
    source="003 DLM2",
    aliases=("DLM2",),
    protocols=("LogProb", "Step"),
    oracle="brute force over parents, and their posterior: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the latent-parent model."""

    max_distance: int | None = field(default=5, metadata={"at_least": 1})
    """Maximum distance of the parent, in tokens; none for no limit."""


SIZES = {
    "tiny": Config(width=16, max_distance=3, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    backbone = parts.make_latent_parents(config, embedding, UniformPrior(config.max_distance))
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
