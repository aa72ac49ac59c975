"""What goes with unscaled products: the factors that others divide by stand in the first weights.

The convention of Mesh TensorFlow, which T5 follows (Raffel et al. 2020).
"""

from __future__ import annotations

from torch import Tensor, nn

from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.relative_positions import T5RelativeBias


class OutputScaling(nn.Module):
    """c · h: a hidden state made shorter before products with the vectors of the tokens."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.factor


def init_t5_weights(module: nn.Module, tokens: nn.Embedding) -> None:
    """Weights of a standard deviation 1/√(inputs), so that sums keep the size of what is summed.

    Queries are 1/√(head width) of that, as their products are not divided by it; token vectors have
    a standard deviation of 1, since the output is scaled where it is tied to them.
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
            # Small, so that all distances look alike at first.
            nn.init.normal_(part.table.weight, std=0.02)
    nn.init.normal_(tokens.weight, std=1.0)
