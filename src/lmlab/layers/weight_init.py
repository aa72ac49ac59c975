"""Transformer weight initialisation (BERT, GPT-2, T5), and T5's output scaling."""

from __future__ import annotations

import math

from torch import Tensor, nn

from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.relative_positions import T5RelativeBias


class OutputScaling(nn.Module):
    """Output scaling c · h, before products with tied token embeddings."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.factor


def init_t5_weights(module: nn.Module, tokens: nn.Embedding) -> None:
    """Weights of standard deviation 1/√(fan-in), which preserves the scale of sums.

    Queries have 1/√(head width) of that, as attention scores are not divided by it; token
    embeddings have a standard deviation of 1, since the output is scaled if tied to them.
    """
    for part in module.modules():
        if isinstance(part, MultiHeadAttention):
            std = part.qkv_projection.in_features**-0.5
            nn.init.normal_(part.qkv_projection.weight, std=std)
            queries = part.qkv_projection.weight[: part.inner_width]
            nn.init.normal_(queries.detach(), std=std * part.head_width**-0.5)
            nn.init.normal_(part.output.weight, std=part.inner_width**-0.5)
        elif isinstance(part, FeedForward):
            for layer in part.children():
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        elif isinstance(part, T5RelativeBias):
            # Small, so that all distances are nearly equal at first.
            nn.init.normal_(part.table.weight, std=0.02)
    nn.init.normal_(tokens.weight, std=1.0)


WIDTH_SCALED_STD = 0.02 * math.sqrt(768)
"""BERT and GPT-2 use a standard deviation of 0.02 at width 768; other widths in proportion to
1/√width, which preserves the scale of sums."""


RESIDUAL_OUTPUTS = ("mixer.output", "attention.output", "feed_forward.down_projection")
"""Names of the last linear map of a sublayer with a residual connection."""


def init_transformer_weights(module: nn.Module, width: int, *, layers: int = 0) -> None:
    """Normal weights of one size, zero biases; residual outputs scaled by 1/√(2·layers).

    Radford et al. 2019 scale these so that a deep sum does not grow; `layers` 0 does not.
    """
    std = WIDTH_SCALED_STD / math.sqrt(width)
    for name, part in module.named_modules():
        if not isinstance(part, (nn.Linear, nn.Embedding)):
            continue
        residual = layers and name.endswith(RESIDUAL_OUTPUTS)
        nn.init.normal_(part.weight, std=std / math.sqrt(2 * layers) if residual else std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
