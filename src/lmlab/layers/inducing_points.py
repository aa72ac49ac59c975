"""Inducing-point attention (Set Transformer): all positions interact through a few learned ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.capture import Capture
from lmlab.layers.block import Block
from lmlab.layers.sequence_mixer import LayerContext, SequenceMixer, unpadded


class InducingPointAttention(SequenceMixer):
    """Induced set attention ISAB(X) = MAB(X, MAB(I, X)), M learned points I (Lee et al. 2019).

    MAB(X, Y) is a post-norm Transformer block with queries X and keys Y: H = norm(X + MultiAtt(X,
    Y)), norm(H + feed_forward(H)). Values (B, T, W) to the same shape. Cost O(T · M · W + (T + M) ·
    W²).
    """

    supported_masks = (FullMask,)

    def __init__(self, gather: Block, spread: Block, *, points: int, width: int) -> None:
        super().__init__()
        self.gather = gather
        self.spread = spread
        self.points = nn.Parameter(torch.empty(points, width))
        nn.init.normal_(self.points)
        self.heads = spread.attention.heads

    def forward(self, values: Tensor, context: LayerContext) -> Tensor:
        positions = torch.arange(values.shape[1], device=values.device)[None]
        points = torch.arange(len(self.points), device=values.device)[None]
        inner = LayerContext(
            query_positions=positions,
            key_positions=points,
            disabled_heads=context.disabled_heads,
            record=None if context.record is None else {},
        )
        gather_record: dict[str, Capture] | None = None if context.record is None else {}
        gather_context = replace(
            inner,
            mask=unpadded(values, context),
            query_positions=points,
            key_positions=positions,
            record=gather_record,
        )
        start = self.points.expand(len(values), -1, -1)
        gathered = self.gather(start, gather_context, content=values)
        outputs: Tensor = self.spread(values, inner, content=gathered)
        axes = ("batch", "head", "slot", "source")
        self._capture_weights(gather_record, "gathering", axes, context)
        self._capture_weights(inner.record, "spreading", ("batch", "head", "time", "slot"), context)
        return outputs

    @staticmethod
    def _capture_weights(
        record: dict[str, Capture] | None, name: str, axes: tuple[str, ...], context: LayerContext
    ) -> None:
        """Capture the attention of one half, whose other axis is the inducing points."""
        if record is not None:
            weights = record["attention"].values
            caption = "Attention weights; slots are the inducing points."
            points = tuple(f"point {n + 1}" for n in range(weights.shape[axes.index("slot")]))
            named = {"slot": points}
            context.capture(
                f"{name} attention", weights, axes, caption, named, sums_to_one=axes[-1]
            )
