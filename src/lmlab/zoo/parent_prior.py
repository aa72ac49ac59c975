"""Skip-bigram mixture: the source is a latent earlier word, with a learned prior per position.

    p(s_i = k | s_<i) = Σ_{a<i} P(a | i) softmax_k(e(k) · W e(s_a) + b_k), P(a | i) a learned table

The prior can put its weight on the start token, which ignores the context.
"""

from __future__ import annotations

from lmlab.backbones.latent_parents import LearnedPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Saul and Pereira 1997 (mixed-order Markov models)",
    source="003 DLM5",
    aliases=("DLM5",),
    protocols=("LogProb", "Step"),
    oracle="brute force over parents: tests/parity/test_parents.py",
)

Config = parts.LearnedPriorConfig
SIZES = {
    "tiny": Config(width=16, length=6, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, length=64, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    backbone = parts.make_latent_parents(config, embedding, LearnedPrior(config.length))
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
