"""Fixed relative positions: sines and cosines of the distance (Wei et al. 2019, NEZHA)."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.layers.attention_positions import AttentionPositions, ShawPositions
from lmlab.layers.positions import SinusoidalPositions


class RelativeSinusoids(ShawPositions):
    """Shaw's relative positions with fixed vectors, the same for keys and values:

        a_c = [sin(c ω), cos(c ω)],  ω_i = 10000^(-2i/D),  c = clip(j - i, ±reach).

    Nothing to learn, and what is near looks alike. NEZHA's reach is 64.
    """

    def __init__(self, head_width: int, *, reach: int = 64) -> None:
        AttentionPositions.__init__(self)
        self.reach = reach
        distances = torch.arange(-reach, reach + 1)[None]
        waves: Tensor = SinusoidalPositions(head_width).waves(distances)[0]
        self.register_buffer("keys", waves, persistent=False)
        self.register_buffer("values", waves, persistent=False)
