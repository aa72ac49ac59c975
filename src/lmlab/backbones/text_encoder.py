"""Pooled text encoder: a backbone, pooling of its hidden states, and a projection."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Backbone
from lmlab.core.view import View

TextPooling = Literal["first", "mean"]


class PooledTextEncoder(nn.Module):
    """Text embedding: W h_0, h = backbone(<s> x </s>) (Guu et al. 2020); or W times the mean of h.

    Rows (B, T) to (B, width). Without a width of its own there is no W (Karpukhin et al. 2020).
    With `length` L > 0, v becomes L v / ‖v‖ (Reimers and Gurevych 2019), and the inner product of
    two vectors L² times their cosine.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        width: int = 0,
        pooling: TextPooling = "first",
        length: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.length = length
        self.projection = nn.Linear(backbone.width, width, bias=False) if width else None
        self.width = width or backbone.width
        if self.projection is not None:
            # Inner products of two such vectors start near ±1, where the softmax is not saturated.
            nn.init.normal_(self.projection.weight, std=backbone.width**-0.5 * width**-0.25)

    def forward(self, batch: Batch) -> Tensor:
        view = View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=FullMask())
        values: Tensor = self.backbone(view).values
        if self.pooling == "first":
            pooled = values[:, 0]
        else:
            real = batch.mask()[..., None]
            pooled = (values * real).sum(1) / real.sum(1).clamp(min=1)
        vectors = pooled if self.projection is None else self.projection(pooled)
        return self.length * F.normalize(vectors, dim=1) if self.length else vectors
