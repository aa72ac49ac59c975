"""Simple (Elman) RNN language model: tanh, or linear to study vanishing and exploding gradients.

    h_t = tanh(W x_t + U h_{t-1} + b);  p(next) = softmax(E h_t + b)

With `activation=linear` the gradient through t steps is U^t exactly; `radius` sets the initial
spectral radius of U.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import LinearCell, TanhCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _recurrent as parts

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Elman 1990, Finding Structure in Time; Mikolov et al. 2010, RNN based language model",
    source="002 §3.2, 003 DLM11",
    aliases=("DLM11",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="torch.nn.RNN with the same weights: tests/parity/test_recurrent.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.RecurrentConfig):
    """Settings of a simple RNN."""

    activation: Literal["tanh", "linear"] = "tanh"
    """Activation: tanh or linear."""
    radius: float | None = field(default=None, metadata={"above": 0})
    """Initial spectral radius of U; None for torch's initialisation."""


SIZES = parts.make_recurrent_sizes(Config)
RECIPES = parts.RECURRENT_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    cell = TanhCell if config.activation == "tanh" else LinearCell
    return parts.build_rnn_lm(config, vocabulary, partial(cell, radius=config.radius))
