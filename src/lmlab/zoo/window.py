"""Log-bilinear n-gram (Mnih and Hinton 2007): sum over the last n words, a matrix per distance.

    p(s_i = k | s_<i) = softmax_k(e(k) · Σ_{j=1..n} W_j e(s_{i-j}) + b_k)

Input and output embeddings are tied. Tokens before the start token count as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.window import LinearWindow
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo._next_token import SHORT_SENTENCES, assemble_lm, small_embedding

CARD = Card(
    family="window",
    kind="exact",
    paper="Mnih and Hinton 2007, Three New Graphical Models for Statistical Language Modelling",
    source="003 DLM1",
    aliases=("DLM1",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="a sentence worked by hand: tests/parity/test_windows.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig):
    """Settings of the log-bilinear n-gram."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Embedding size."""
    size: int = field(default=5, metadata={"at_least": 1})
    """Context size n, in tokens."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings."""


SIZES = {
    "tiny": Config(width=16, size=3, dropout=0.0),
    "small": Config(),
    "base": Config(width=512, dropout=0.5),
}
RECIPES = {"multi30k": {"dropout": 0.4, **SHORT_SENTENCES}}


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = small_embedding(vocabulary.size, config.width)
    backbone = LinearWindow(embedding, config.size, config.dropout)
    return assemble_lm(vocabulary, backbone, Softmax(config.width, vocabulary, tied=embedding))
