"""Log-bilinear n-gram with a latent order of the context words, summed over all permutations.

    p(s_i = k | s_<i) = Σ_π P(π) softmax_k(e(k) · Σ_{j=1..n} W_j e(s_{i-π(j)}) + b_k)

Each of the n! permutations has a learned weight and its own normaliser: 120 per word at n = 5. With
all weight on the identity it is `window`. Tokens before the start token count as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.window import PermutedWindow
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _latent_choice as parts

CARD = Card(
    family="latent",
    kind="exact",
    paper="cf. Mnih and Hinton 2007 (log-bilinear)",
    source="003 DLM3",
    aliases=("DLM3",),
    protocols=("LogProb", "Step"),
    oracle="brute force over orderings: tests/parity/test_parents.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.LatentChoiceConfig):
    """Settings of the log-bilinear n-gram with a latent order."""

    size: int = field(default=3, metadata={"at_least": 2, "at_most": 5})
    """Context size n, in tokens; there are 2, 6, 24 or 120 permutations."""


SIZES = {
    "tiny": Config(width=16, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, size=4, dropout=0.5),
}
RECIPES = parts.LATENT_CHOICE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = parts.new_embedding(config, vocabulary)
    backbone = PermutedWindow(embedding, config.size, dropout=config.dropout)
    return parts.build_latent_choice_lm(backbone, embedding, vocabulary)
