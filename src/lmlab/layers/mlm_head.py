"""What a hidden state goes through before it is compared with the vectors of the tokens."""

from __future__ import annotations

from torch import Tensor, nn

from lmlab.layers.feed_forward import ACTIVATIONS, ActivationName


class MLMHead(nn.Module):
    """norm(f(W h + b)): BERT's, from the width of the layers to that of the token vectors."""

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
