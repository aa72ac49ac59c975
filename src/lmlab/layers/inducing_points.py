"""Inducing-point attention (Set Transformer): all positions interact through a few learned ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.layers.attention_context import AttentionContext
from lmlab.layers.transformer_block import TransformerBlock


class InducedSetAttentionBlock(nn.Module):
    """Induced set attention ISAB(X) = MAB(X, MAB(I, X)), M learned points I (Lee et al. 2019).

    MAB(X, Y) is a post-norm Transformer layer with queries X and keys Y: H = norm(X + MultiAtt(X,
    Y)), norm(H + feed_forward(H)). Values (B, T, W) to the same shape. Cost O(T · M · W + (T + M) ·
    W²).
    """

    def __init__(
        self, gather: TransformerBlock, spread: TransformerBlock, *, points: int, width: int
    ) -> None:
        super().__init__()
        self.gather = gather
        self.spread = spread
        self.points = nn.Parameter(torch.empty(points, width))
        nn.init.normal_(self.points)

    def forward(self, values: Tensor, real: Tensor, scope: AttentionContext) -> Tensor:
        """(B, T, W), given the unpadded positions, (B, T) bool."""
        positions = torch.arange(values.shape[1], device=values.device)[None]
        points = torch.arange(len(self.points), device=values.device)[None]
        gather_scope = AttentionContext(
            mask=real[:, None, None], query_positions=points, key_positions=positions
        )
        spread_scope = AttentionContext(query_positions=positions, key_positions=points)
        if scope.record is not None:
            gather_scope, spread_scope = (
                gather_scope.with_captures({}),
                spread_scope.with_captures({}),
            )
        start = self.points.expand(len(values), -1, -1)
        gathered = self.gather(start, gather_scope, content=values)
        outputs: Tensor = self.spread(values, spread_scope, content=gathered)
        self._capture_weights(gather_scope, "gathering", ("batch", "head", "slot", "source"), scope)
        self._capture_weights(spread_scope, "spreading", ("batch", "head", "time", "slot"), scope)
        return outputs

    @staticmethod
    def _capture_weights(
        inner: AttentionContext, name: str, axes: tuple[str, ...], scope: AttentionContext
    ) -> None:
        """Capture the attention of one half, whose other axis is the inducing points."""
        if inner.record is not None:
            weights = inner.record["attention"].values
            caption = "Attention weights; slots are the inducing points."
            points = tuple(f"point {n + 1}" for n in range(weights.shape[axes.index("slot")]))
            named = {"slot": points}
            scope.capture(f"{name} attention", weights, axes, caption, named, sums_to_one=axes[-1])
