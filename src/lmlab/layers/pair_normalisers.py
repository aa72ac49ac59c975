"""Normalisers of all sums of two vectors for the price of the vectors: exponentials factorise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_AT_ONCE = 1024
"""Rows of logits held at once, so that scoring needs no more memory for a larger batch."""


def pairs_within(reach: int | None, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(P,), (P,) all ordered pairs of `count` places less than `reach` apart, row by row."""
    place = torch.arange(count, device=device)
    apart = (place[:, None] - place).abs()
    first, second = (apart < (count if reach is None else reach)).nonzero(as_tuple=True)
    return first, second


def pair_log_normalisers_clear(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """(B, S, S) log Σ_k exp(e_k · (x_a + y_b) + b_k) of x (B, S, W) and y (B, S, W): S² V W."""
    sums = first[:, :, None] + second[:, None, :]
    return torch.logsumexp(F.linear(sums, weight, bias), dim=-1)


def pair_log_normalisers(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same as an inner product over the vocabulary, of cost 2 S V W + S² V.

    Σ_k exp(e_k·x_a + b_k) exp(e_k·y_b), each factor divided by its largest. Where the tokens that
    x_a likes and those that y_b likes are some 85 nats apart nothing of the product is left in
    single precision; the least positive number stands for it then, and nothing is infinite.
    """
    rows = max(1, _ROWS_AT_ONCE // max(1, first.shape[1]))
    blocks = zip(first.split(rows), second.split(rows), strict=True)
    return torch.cat([_block(x, y, weight, bias) for x, y in blocks])


def _block(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    left, highest_left = _powers(F.linear(first, weight, bias))
    right, highest_right = _powers(F.linear(second, weight))
    product = left @ right.transpose(1, 2)
    smallest = torch.finfo(product.dtype).tiny
    return product.clamp(min=smallest).log() + highest_left + highest_right.transpose(1, 2)


def _powers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """exp(logits - highest) in the logits' own memory, and the highest of each row."""
    highest = logits.detach().amax(-1, keepdim=True)
    return logits.sub_(highest).exp_(), highest
