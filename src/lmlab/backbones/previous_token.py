"""Bigram backbone: the previous token only."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View


class PreviousToken(Backbone):
    """Bigram context: h_i = e(s_{i-1}), the embedding of the previous token.

    Inputs (B, T), values (B, T, W). Stateless.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, embedding: nn.Embedding, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = embedding.embedding_dim
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"nothing": torch.zeros(rows, 0)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        values = self.dropout(self.embedding(view.inputs))
        return HiddenStates(values=values, state=state or self.initial_state(len(view.inputs)))
