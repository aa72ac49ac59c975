"""T5 initialisation for unscaled attention: scaling factors go into the initial weights.

The convention of Mesh TensorFlow, which T5 follows (Raffel et al. 2020).
"""

from __future__ import annotations

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
            spread = part.qkv_projection.in_features**-0.5
            nn.init.normal_(part.qkv_projection.weight, std=spread)
            queries = part.qkv_projection.weight[: part.inner_width]
            nn.init.normal_(queries.detach(), std=spread * part.head_width**-0.5)
            nn.init.normal_(part.output.weight, std=part.inner_width**-0.5)
        elif isinstance(part, FeedForward):
            for each in part.children():
                if isinstance(each, nn.Linear):
                    nn.init.normal_(each.weight, std=each.in_features**-0.5)
        elif isinstance(part, T5RelativeBias):
            # Small, so that all distances are nearly equal at first.
            nn.init.normal_(part.table.weight, std=0.02)
    nn.init.normal_(tokens.weight, std=1.0)
