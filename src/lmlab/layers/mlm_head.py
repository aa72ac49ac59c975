"""BERT's MLM head: dense layer, activation, layer norm."""

from __future__ import annotations

from torch import Tensor, nn

from lmlab.layers.feed_forward import ACTIVATIONS, ActivationName


class MLMHead(nn.Module):
    """norm(f(W h + b)), from the width of the layers to that of the token embeddings."""

    def __init__(
        self,
        width: int,
        output: int,
        *,
        activation: ActivationName = "gelu",
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, output)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm or nn.LayerNorm(output)

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return normed
