"""Log-probability of targets under a linear softmax layer: the clear version and the fast one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def linear_log_prob_clear(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """log softmax(hidden weightᵀ + bias)[target]: (N, W), (V, W), (V,), (N,) → (N,)."""
    log_probs = F.log_softmax(F.linear(hidden, weight, bias), dim=-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1)


class _LinearLogProb(torch.autograd.Function):
    """The same with one (N, V) buffer instead of three.

    The logits' buffer becomes exp(logits - max) in place, is kept for the backward pass, and there
    becomes the gradient of the logits in place, g (1[target] - p). This spares a CPU two large
    allocations and several passes over memory; `benchmarks/speed.py --only softmax` measures it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        buffer = torch.addmm(bias, hidden, weight.t())
        chosen = buffer.gather(1, targets[:, None])
        highest = buffer.amax(1, keepdim=True)
        scale = buffer.sub_(highest).exp_().sum(1, keepdim=True)
        ctx.save_for_backward(hidden, weight, buffer, scale, targets)
        ctx.spent = False
        return (chosen - highest - scale.log()).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        assert not ctx.spent, "the buffer is used up: call linear_log_prob again"
        ctx.spent = True
        hidden, weight, buffer, scale, targets = ctx.saved_tensors
        buffer.mul_(-gradient[:, None] / scale)
        buffer.scatter_add_(1, targets[:, None], gradient[:, None])
        return buffer @ weight, buffer.t() @ hidden, buffer.sum(0), None


def linear_log_prob(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """log softmax(hidden weightᵀ + bias)[target]; equals the clear version, differentiable once."""
    if torch.is_grad_enabled():
        result: Tensor = _LinearLogProb.apply(hidden, weight, bias, targets)
        return result
    return _score_in_blocks(hidden, weight, bias, targets)


_ROWS_AT_ONCE = 1024
"""Rows of logits held at once while scoring, so that a long text needs no more memory."""


def _score_in_blocks(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Without gradients: blocks of rows, all through one buffer, which spares the allocator."""
    rows = min(len(hidden), _ROWS_AT_ONCE)
    buffer = hidden.new_empty(rows, len(weight))
    result = hidden.new_empty(len(hidden))
    for first in range(0, len(hidden), max(rows, 1)):
        block = hidden[first : first + rows]
        logits = torch.addmm(bias, block, weight.t(), out=buffer[: len(block)])
        chosen = logits.gather(1, targets[first : first + rows, None]).squeeze(1)
        highest = logits.amax(1, keepdim=True)
        scale = logits.sub_(highest).exp_().sum(1)
        result[first : first + rows] = chosen - highest.squeeze(1) - scale.log()
    return result
