"""Soft Hamming softmax: logits are the sum, or minimum, of per-part sigmoid agreements with h."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lmlab.core.errors import UserError
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import never_predicted_mask


def part_products(hidden: Tensor, tokens: Tensor) -> Tensor:
    """(N, V, G) the inner product of each part with the same part of every token."""
    return torch.einsum("ngd,vgd->nvg", hidden, tokens)


def sum_of_sigmoids_clear(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Σ_g σ(h^g · e^g), reference implementation: (N, V)."""
    return torch.sigmoid(part_products(hidden, tokens)).sum(-1)


def lowest_product_clear(hidden: Tensor, tokens: Tensor) -> Tensor:
    """min_g h^g · e^g, reference implementation: (N, V)."""
    return part_products(hidden, tokens).amin(-1)


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
        hidden_grad, token_grad = torch.empty_like(hidden), torch.empty_like(tokens)
        for g in range(hidden.shape[1]):
            part, token_part = hidden[:, g], tokens[:, g]
            squashed = (part @ token_part.t()).sigmoid_()
            # σ' = σ - σ², times the gradient, in the one buffer.
            inner = squashed.addcmul_(squashed, squashed, value=-1).mul_(gradient)
            hidden_grad[:, g], token_grad[:, g] = inner @ token_part, inner.t() @ part
        return hidden_grad, token_grad


class _LowestProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tokens: Tensor) -> Tensor:
        lowest = hidden[:, 0] @ tokens[:, 0].t()
        argmin = torch.zeros_like(lowest, dtype=torch.uint8)
        for g in range(1, hidden.shape[1]):
            product = hidden[:, g] @ tokens[:, g].t()
            argmin.masked_fill_(product < lowest, g)
            lowest = torch.minimum(lowest, product, out=lowest)
        ctx.save_for_backward(hidden, tokens, argmin)
        return lowest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        hidden, tokens, argmin = ctx.saved_tensors
        hidden_grad, token_grad = torch.empty_like(hidden), torch.empty_like(tokens)
        for g in range(hidden.shape[1]):
            inner = gradient * (argmin == g)
            hidden_grad[:, g], token_grad[:, g] = (inner @ tokens[:, g], inner.t() @ hidden[:, g])
        return hidden_grad, token_grad


def sum_of_sigmoids(hidden: Tensor, tokens: Tensor) -> Tensor:
    """Σ_g σ(h^g · e^g); equals the reference implementation, differentiable once."""
    return _SumOfSigmoids.apply(hidden, tokens)


def lowest_product(hidden: Tensor, tokens: Tensor) -> Tensor:
    """min_g h^g · e^g; equals the reference, differentiable once; at most 255 parts."""
    return _LowestProduct.apply(hidden, tokens)


class Hamming(Emission):
    """Soft Hamming similarity: p(k | h) = softmax_k(β Σ_g σ(h^g · e_k^g) + b_k).

    Tokens and hidden states have G vectors of W / G units, one per feature. Each inner product is
    squashed to between 0 and 1 before the sum, so that one feature's excess cannot compensate for
    another's lack; the nonlinearity also lifts the softmax's rank bound. β > 0 is learned, as G
    agreements alone could not single out one of V tokens. Cost N · W · V and G · N · V sigmoids.
    Hidden (…, W), log-probabilities (…, V).
    """

    never_predicted: Tensor
    weight: Tensor

    def __init__(
        self,
        width: int,
        parts: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if width % parts or parts > 255:
            raise UserError(f"parts must divide the width {width} and be at most 255, got {parts}.")
        self.parts = parts
        if tied is None:
            self.weight = nn.Parameter(torch.empty(vocabulary.size, width))
            nn.init.normal_(self.weight, std=(width / parts) ** -0.5)
        else:
            self.weight = tied.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))
        self.log_scale = nn.Parameter(torch.tensor(self.initial_log_scale(vocabulary.size)))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def initial_log_scale(self, size: int) -> float:
        """Such that agreement in all parts, relative to half of them, is worth about log V."""
        return math.log(max(2 * math.log(size) / self.parts, 1.0))

    def agreement(self, hidden: Tensor) -> Tensor:
        """(N, V) agreement of each token with each hidden state (N, W)."""
        return sum_of_sigmoids(*self._split_parts(hidden))

    def _split_parts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        shape = (self.parts, -1)
        return self.dropout(hidden).unflatten(-1, shape), self.weight.unflatten(-1, shape)

    def log_probs(self, hidden: Tensor) -> Tensor:
        agreement = self.agreement(hidden.flatten(0, -2))
        scores = torch.addcmul(self.bias + self.never_predicted, agreement, self.log_scale.exp())
        return F.log_softmax(scores, dim=-1).view(*hidden.shape[:-1], -1)


class HammingLowest(Hamming):
    """Minimum agreement: p(k | h) = softmax_k(β min_g σ(h^g · e_k^g) + b_k).

    σ is monotone, so the lowest sigmoid is that of the lowest product.
    """

    def initial_log_scale(self, size: int) -> float:
        return math.log(2 * math.log(size))

    def agreement(self, hidden: Tensor) -> Tensor:
        return torch.sigmoid(lowest_product(*self._split_parts(hidden)))
