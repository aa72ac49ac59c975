"""Log-softmax at targets with one buffer: linear layer or mixture table; log-normalisers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmlab.layers.matrix_product import product


def linear_log_prob_clear(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """log softmax(hidden weightᵀ + bias)[target]: (N, W), (V, W), (V,), (N,) → (N,)."""
    log_probs = F.log_softmax(F.linear(hidden, weight, bias), dim=-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1)


class _LinearLogProb(torch.autograd.Function):
    """The same with one (N, V) buffer instead of three.

    The logits' buffer becomes exp(logits - max) in place and is kept for the backward pass. There
    the gradient of the logits, g (1[target] - p), is never built: its products with the weights and
    hidden states are those of the buffer, with rows scaled by -g / Σ exp, plus those of the targets
    alone. `benchmarks/speed.py --only softmax` measures it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        buffer = product(hidden, weight, bias)
        chosen = buffer.gather(1, targets[:, None])
        highest = buffer.amax(1, keepdim=True)
        scale = buffer.sub_(highest).exp_().sum(1, keepdim=True)
        ctx.save_for_backward(hidden, weight, buffer, scale, targets)
        return (chosen - highest - scale.log()).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        hidden, weight, buffer, scale, targets = ctx.saved_tensors
        gradient = gradient[:, None]
        factors = -gradient / scale
        for_hidden = product(buffer, weight.t()).mul_(factors)
        for_hidden.addcmul_(gradient, weight[targets])
        # (W, V), transposed: faster than (V, W) at once.
        for_weight = product((factors * hidden).t(), buffer.t()).t().contiguous()
        for_weight.index_add_(0, targets, gradient * hidden)
        for_bias = None
        if ctx.needs_input_grad[2]:
            for_bias = (buffer.t() @ factors).squeeze(1)
            for_bias.index_add_(0, targets, gradient.squeeze(1))
        return for_hidden, for_weight, for_bias, None


def linear_log_prob(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """log softmax(hidden weightᵀ + bias)[target]; equals the reference, differentiable once."""
    if torch.is_grad_enabled():
        return _LinearLogProb.apply(hidden, weight, bias, targets)
    return _score_in_blocks(hidden, weight, bias, targets)


_ROWS_AT_ONCE = 1024
"""Rows of logits held at once in scoring, which bounds the memory."""
_COLUMNS_AT_ONCE = 1024
"""Tokens whose logits a CPU computes at once, so that they are summed while in its cache. All
30,522 of BERT in one product take 1.4 times as long."""


def _score_in_blocks(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Without gradients: the target's logit less the normaliser, which is summed in blocks."""
    scores = (hidden * weight[targets]).sum(1) + bias[targets]
    for first in range(0, len(hidden), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        scores[rows] -= log_normaliser(hidden[rows], weight, bias)
    return scores


def log_normaliser(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(N,) log Σ_k exp(hidden · weight_k + bias_k), without gradients, through one buffer."""
    columns = min(_COLUMNS_AT_ONCE, len(weight)) if hidden.is_cpu else len(weight)
    buffer, lowest = hidden.new_empty(len(hidden) * columns), torch.finfo(hidden.dtype).min
    parts = []
    for vectors, offsets in zip(weight.split(columns), bias.split(columns), strict=True):
        logits = buffer[: len(hidden) * len(vectors)].view(len(hidden), -1)
        torch.addmm(offsets, hidden, vectors.t(), out=logits)
        # If a block has only tokens that are never predicted, its sum is zero.
        highest = logits.amax(1).clamp_(min=lowest)
        parts.append(logits.sub_(highest[:, None]).exp_().sum(1).log_().add_(highest))
    return torch.logsumexp(torch.stack(parts), 0)


def log_table(outputs: Tensor, points: Tensor, bias: Tensor) -> Tensor:
    """log softmax_s(outputs_s · points_z + bias_s): (V, W), (K, W), (V,) → (V, K)."""
    return F.log_softmax(outputs @ points.t() + bias[:, None], dim=0)


def table_log_prob_clear(outputs: Tensor, points: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """(N, K) the rows of the table at N targets."""
    return F.embedding(targets, log_table(outputs, points, bias))


class _TableLogProb(torch.autograd.Function):
    """The same with one (V, K) buffer instead of four.

    The scores' buffer becomes exp(score - max) in place and is kept for the backward pass. There
    the gradient of the scores, -p Σg and + g in the targets' rows, is never built: see
    `_LinearLogProb`.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, points: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        buffer = product(outputs, points).add_(bias[:, None])
        rows = buffer[targets]
        highest = buffer.amax(0)
        scale = buffer.sub_(highest).exp_().sum(0)
        ctx.save_for_backward(outputs, points, buffer, scale, targets)
        return rows.sub_(highest + scale.log())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        outputs, points, buffer, scale, targets = ctx.saved_tensors
        factors = (-gradient.sum(0) / scale)[:, None]
        for_outputs = product(buffer, (factors * points).t())
        for_outputs.index_add_(0, targets, product(gradient, points.t()))
        # (W, K), transposed.
        for_points = product(outputs.t(), buffer.t()).t() * factors
        for_points += product(gradient.t(), outputs[targets].t())
        for_bias = None
        if ctx.needs_input_grad[2]:
            for_bias = (buffer @ factors).squeeze(1).index_add_(0, targets, gradient.sum(1))
        return for_outputs, for_points, for_bias, None


def table_log_prob(outputs: Tensor, points: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """(N, K) log P(target | state) for N targets; equals the reference, differentiable once."""
    return _TableLogProb.apply(outputs, points, bias, targets)
