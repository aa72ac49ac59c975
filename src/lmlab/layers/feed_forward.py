"""Feed-forward layers: Transformer FFN, gated (GEGLU), residual MLP, and BERT's MLM head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

ActivationName = Literal["gelu", "gelu-tanh", "relu", "silu", "tanh"]


def _gelu_tanh(values: Tensor) -> Tensor:
    return F.gelu(values, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": F.tanh,
}


class FeedForward(nn.Module):
    """Feed-forward network W_2 f(W_1 x + b_1) + b_2."""

    def __init__(
        self, width: int, inner: int, *, activation: ActivationName = "gelu", bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up_projection = nn.Linear(width, inner, bias=bias)
        self.down_projection = nn.Linear(inner, width, bias=bias)

    def forward(self, values: Tensor) -> Tensor:
        return self.down_projection(self.units(values))

    def units(self, values: Tensor) -> Tensor:
        """(…, inner) hidden activations: key matches of a key-value memory (Geva et al. 2021)."""
        return self.activation(self.up_projection(values))


class GatedFeedForward(FeedForward):
    """Gated linear unit W_2 (f(W_1 x) · W_3 x) (GEGLU etc., Shazeer 2020; T5 v1.1)."""

    def __init__(
        self, width: int, inner: int, *, activation: ActivationName = "gelu", bias: bool = True
    ) -> None:
        super().__init__(width, inner, activation=activation, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias)

    def units(self, values: Tensor) -> Tensor:
        return self.activation(self.up_projection(values)) * self.gate(values)


class ResidualMLP(nn.Module):
    """x + W₂ relu(W₁ norm(x)), (…, W) to (…, W)."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        inner = F.relu(self.inner(self.norm(values)))
        return values + self.outer(self.dropout(inner))


class MLMHead(nn.Module):
    """BERT's MLM head norm(f(W h + b)), from the layers' width to the embeddings'."""

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
        return self.norm(self.activation(self.dense(hidden)))
