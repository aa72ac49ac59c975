"""Log-bilinear bigram interpolated with a unigram, with weight ½ or a learned one.

    p(s_i | s_{i-1}) = λ Q(s_i) + (1 - λ) W(s_i | s_{i-1})
    Q = softmax_k(e(k) · q + b_k),  W = softmax_k(e(k) · W e(s_{i-1}) + b_k)

λ is ½, or learned with `learned_weight`. At the end of a phrase the next word does not depend on
the last (a renewal): Q covers what W need not explain.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.backbones.latent_parents import Renewal, UniformPrior
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Jelinek and Mercer 1980 (linear interpolation)",
    source="003 DLM7",
    aliases=("DLM7",),
    protocols=("LogProb", "Step"),
    oracle="a sentence worked by hand: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the renewal model."""

    learned_weight: bool = False
    """Whether λ is learned, initialised to 1/2; else fixed."""


SIZES = {
    "tiny": Config(width=16, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    previous = parts.make_latent_parents(config, embedding, UniformPrior(max_distance=1))
    backbone = Renewal(previous, learned=config.learned_weight)
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
