"""Set Transformer backbone: positions interact through inducing points only."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lmlab.backbones.transformer import position_ids
from lmlab.core.attention_mask import FullMask, LayerMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.inducing_points import InducingPointAttention
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.stack import Stack


class SetTransformer(Backbone):
    """Set Transformer: h = ISAB(… ISAB(e)) (Lee et al. 2019), a stack of `InducingPointAttention`.

    Without positional embeddings it is permutation-equivariant. Inputs (B, T), hidden (B, T, W);
    cost O(T · M · W + (T + M) · W²) per layer of M inducing points.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(self, embedding: InputEmbedding, stack: Stack, *, width: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        mixers = [block.mixer for block in stack.all_blocks()]
        self.points = max(len(m.points) for m in mixers if isinstance(m, InducingPointAttention))
        self.width = width
        self.max_positions = embedding.max_positions

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        return HiddenStates(values=self.read(view))

    def read(self, view: View, *, record: dict[str, Capture] | None = None) -> Tensor:
        """(B, T, W) hidden states of all positions; internals go into `record` where given."""
        positions = position_ids(view)
        values: Tensor = self.embedding(view.inputs, positions, view.segments)
        real = torch.arange(values.shape[1], device=values.device) < view.lengths[:, None]
        context = LayerContext(mask=real[:, None, None], record=record)
        hidden: Tensor = self.stack(values, context)
        return hidden

    def layer_mask(self, length: int) -> LayerMask:
        """Inducing points attend to all words, a word to itself and to the points.

        All points are alike, so one stands for them here.
        """
        allowed = torch.eye(length + 1, dtype=torch.bool)
        allowed[:, length] = allowed[length] = True
        return LayerMask(allowed=allowed, auxiliary_nodes=(f"{self.points} points",))

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Attention of inducing points over positions, and of positions over points."""
        record: dict[str, Capture] = {}
        self.read(view, record=record)
        return record
