"""Traces: several exponentially decaying averages of the words so far, each with a rate of its own.

    h_t^k = α_k h_{t-1}^k + (1 - α_k) e(s_t);  p(next) = softmax(E [h_t^1; …; h_t^K] + b)

The rates α are fixed: with rate 0 a trace is the last word's embedding, with 0.9 it covers about
ten words. The context layer of Mikolov et al. is one such trace beside a recurrent layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Mozer 1989 (A focused backpropagation algorithm), Mikolov et al. 2014 (Learning longer "
    "memory in recurrent neural networks)",
    source="",
    protocols=("LogProb", "Step"),
    oracle="averages computed by hand: tests/test_traces.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the traces."""

    width: int = field(default=64, metadata={"at_least": 1})
    """Numbers in an embedding."""
    rates: tuple[float, ...] = (0.0, 0.5, 0.9)
    """Decay rate of each trace, from 0 (the last word) to below 1 (all words)."""


SIZES = {"tiny": Config(width=8), "small": Config(), "base": Config(width=256)}


class Traces(Backbone):
    """Decaying averages of the embeddings so far, one per rate; (B, T) ids to (B, T, W · K)."""

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)
    rates: Tensor

    def __init__(self, embedding: nn.Embedding, rates: tuple[float, ...]) -> None:
        super().__init__()
        if not rates or not all(0 <= rate < 1 for rate in rates):
            raise UserError(f"rates must be numbers from 0 to below 1, got {rates}; try 0,0.5,0.9.")
        self.embedding = embedding
        self.register_buffer("rates", torch.tensor(rates).unsqueeze(-1), persistent=False)

    @property
    def width(self) -> int:
        return self.embedding.embedding_dim * len(self.rates)

    def initial_state(self, rows: int) -> TensorState:
        shape = (rows, len(self.rates), self.embedding.embedding_dim)
        return TensorState({"traces": self.embedding.weight.new_zeros(shape)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        traces, values = before["traces"], []
        for vector in self.embedding(view.inputs).unbind(1):
            traces = self.rates * traces + (1 - self.rates) * vector.unsqueeze(1)
            values.append(traces.flatten(1))
        return HiddenStates(values=torch.stack(values, 1), state=TensorState({"traces": traces}))


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    embedding = nn.Embedding(vocabulary.size, config.width)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    backbone = Traces(embedding, config.rates)
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=Softmax(backbone.width, vocabulary),
        objective=NextToken(),
    )
