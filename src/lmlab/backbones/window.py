"""Fixed-window backbones: n-gram context, linear window, and no context."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import NO_TOKEN


class NgramContext(Backbone):
    """N-gram context: the last n - 1 token ids, the latest last, for table lookup.

    Inputs (B, T), values (B, T, n - 1) int64; `NO_TOKEN` before the first input.
    """

    output_kind: ClassVar[str] = "contexts"
    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = size

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"last": torch.full((rows, self.width), NO_TOKEN)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        joined = torch.cat([before["last"].to(view.inputs.device), view.inputs], dim=1)
        time = view.inputs.shape[1]
        if self.width == 0:
            return HiddenStates(values=joined.new_zeros(*view.inputs.shape, 0), state=before)
        values = joined.unfold(1, self.width, 1)[:, 1:]
        return HiddenStates(values=values, state=TensorState({"last": joined[:, time:]}))


class LinearWindow(Backbone):
    """Linear window (log-bilinear LM): h_i = Σ_{j=1..n} W_j e(s_{i-j}), a matrix per distance.

    Mnih and Hinton 2007. Tokens before the first are zero. Inputs (B, T), values (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, embedding: nn.Embedding, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.size = size
        self.width = embedding.embedding_dim
        self.context = NgramContext(size)
        self.dropout = nn.Dropout(dropout)
        # Block j of the matrix is W for the token n - j positions back: oldest first.
        self.mix = nn.Linear(size * self.width, self.width, bias=False)

    def initial_state(self, rows: int) -> TensorState:
        return self.context.initial_state(rows)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        looked_at = self.context(view, state)
        ids = looked_at.values
        vectors: Tensor = self.embedding(ids.clamp(min=0)) * (ids != NO_TOKEN)[..., None]
        values = self.mix(self.dropout(vectors).flatten(-2))
        return HiddenStates(values=values, state=looked_at.state)


class NoContext(Backbone):
    """No context: the emission alone is the model. Values (B, T, 0)."""

    output_kind: ClassVar[str] = "nothing"
    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)
    width = 0

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"nothing": torch.zeros(rows, 0)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        rows, time = view.inputs.shape[:2]
        empty = torch.zeros(rows, time, 0, device=view.inputs.device)
        return HiddenStates(values=empty, state=state or self.initial_state(rows))
