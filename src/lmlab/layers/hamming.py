"""Agreement of vectors part by part: sums of sigmoids, and the lowest of several products.

The hidden state (N, G, D) and each of V tokens (V, G, D) have G parts of D numbers. Scores are
(N, V). The clear versions build (N, V, G); the fast ones go through the parts with a few (N, V)
buffers and make the products again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def products(hidden: Tensor, tokens: Tensor) -> Tensor:
    """(N, V, G) the inner product of each part with the same part of every token."""
    return torch.einsum("ngd,vgd->nvg", hidden, tokens)


def sum_of_sigmoids_clear(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Σ_g σ(h^g · e^g): (N, V)."""
    return torch.sigmoid(products(hidden, tokens)).sum(-1)


def lowest_product_clear(hidden: Tensor, tokens: Tensor) -> Tensor:
    """min_g h^g · e^g: (N, V)."""
    return products(hidden, tokens).amin(-1)


class _SumOfSigmoids(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, tokens)
        total = hidden.new_zeros(len(hidden), len(tokens))
        for part, token_part in zip(hidden.unbind(1), tokens.unbind(1), strict=True):
            total += (part @ token_part.t()).sigmoid_()
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        hidden, tokens = ctx.saved_tensors
        for_hidden, for_tokens = torch.empty_like(hidden), torch.empty_like(tokens)
        for g in range(hidden.shape[1]):
            part, token_part = hidden[:, g], tokens[:, g]
            squashed = (part @ token_part.t()).sigmoid_()
            # σ' = σ - σ², times the gradient, in the one buffer.
            inner = squashed.addcmul_(squashed, squashed, value=-1).mul_(gradient)
            for_hidden[:, g], for_tokens[:, g] = inner @ token_part, inner.t() @ part
        return for_hidden, for_tokens


class _LowestProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tokens: Tensor) -> Tensor:
        lowest = hidden[:, 0] @ tokens[:, 0].t()
        which = torch.zeros_like(lowest, dtype=torch.uint8)
        for g in range(1, hidden.shape[1]):
            product = hidden[:, g] @ tokens[:, g].t()
            which.masked_fill_(product < lowest, g)
            lowest = torch.minimum(lowest, product, out=lowest)
        ctx.save_for_backward(hidden, tokens, which)
        return lowest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        hidden, tokens, which = ctx.saved_tensors
        for_hidden, for_tokens = torch.empty_like(hidden), torch.empty_like(tokens)
        for g in range(hidden.shape[1]):
            inner = gradient * (which == g)
            for_hidden[:, g], for_tokens[:, g] = inner @ tokens[:, g], inner.t() @ hidden[:, g]
        return for_hidden, for_tokens


def sum_of_sigmoids(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Σ_g σ(h^g · e^g); equals the clear version, differentiable once."""
    result: Tensor = _SumOfSigmoids.apply(hidden, tokens)
    return result


def lowest_product(hidden: Tensor, tokens: Tensor) -> Tensor:
    """min_g h^g · e^g; equals the clear version, differentiable once; at most 255 parts."""
    result: Tensor = _LowestProduct.apply(hidden, tokens)
    return result
