"""Weight initialisation of a Transformer (BERT, GPT-2)."""

from __future__ import annotations

import math

from torch import nn

WIDTH_SCALED_STD = 0.02 * math.sqrt(768)
"""BERT and GPT-2 use a standard deviation of 0.02 at width 768; other widths in proportion to
1/√width, which preserves the scale of sums."""


def init_transformer_weights(module: nn.Module, width: int, *, layers: int = 0) -> None:
    """Normal weights of one size, zero biases; residual outputs scaled by 1/√(2·layers).

    Radford et al. 2019 scale these so that a deep sum does not grow; `layers` 0 does not.
    """
    spread = WIDTH_SCALED_STD / math.sqrt(width)
    for name, part in module.named_modules():
        if not isinstance(part, (nn.Linear, nn.Embedding)):
            continue
        writes = layers and name.endswith(("attention.output", "feed_forward.down_projection"))
        nn.init.normal_(part.weight, std=spread / math.sqrt(2 * layers) if writes else spread)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
