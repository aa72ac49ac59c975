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


def softmax_in_place(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the last dimension in the logits' own memory, and (…, 1) their log-normalisers.

    torch's kernel takes half as long as maximum, difference, exponential and sum one by one. The
    log-normaliser is the largest logit minus the logarithm of the largest probability, which can't
    underflow.
    """
    highest = logits.amax(-1, keepdim=True)
    probabilities = torch.softmax(logits, -1, out=logits)
    return probabilities, highest - probabilities.amax(-1, keepdim=True).log_()


class _LinearLogProb(torch.autograd.Function):
    """The same with one (N, V) buffer instead of three.

    The logits' buffer becomes their softmax p in place and is kept for the backward pass. There the
    gradient of the logits, g (1[target] - p), is never built: its products with the weights and
    hidden states are those of p, with rows scaled by -g, plus those of the targets alone.
    `benchmarks/speed.py --only softmax` measures it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        logits = product(hidden, weight, bias)
        chosen = logits.gather(1, targets[:, None])
        probabilities, normalisers = softmax_in_place(logits)
        ctx.save_for_backward(hidden, weight, probabilities, targets)
        return (chosen - normalisers).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        hidden, weight, probabilities, targets = ctx.saved_tensors
        gradient = gradient[:, None]
        for_hidden, for_weight = _normaliser_gradients(hidden, weight, probabilities, -gradient)
        for_hidden.addcmul_(gradient, weight[targets])
        for_weight.index_add_(0, targets, gradient * hidden)
        for_bias = None
        if ctx.needs_input_grad[2]:
            for_bias = (probabilities.t() @ -gradient).index_add_(0, targets, gradient).squeeze(1)
        return for_hidden, for_weight, for_bias, None


def _normaliser_gradients(
    hidden: Tensor, weight: Tensor, probabilities: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor]:
    """(N, W), (V, W) the gradients of Σ_n factors_n log Z_n: f p e and f h p, of softmax p."""
    for_hidden = product(probabilities, weight.t()).mul_(factors)
    # (W, V), then transposed: a third faster than (V, W) at once, which copies the probabilities.
    for_weight = product((factors * hidden).t(), probabilities.t()).t().contiguous()
    return for_hidden, for_weight


class _LogNormaliser(torch.autograd.Function):
    """log Σ_k exp(hidden · weight_k + bias_k), with one (N, V) buffer, as `_LinearLogProb`."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        probabilities, normalisers = softmax_in_place(product(hidden, weight, bias))
        ctx.save_for_backward(hidden, weight, probabilities)
        return normalisers.squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        hidden, weight, probabilities = ctx.saved_tensors
        factors = gradient[:, None]
        for_hidden, for_weight = _normaliser_gradients(hidden, weight, probabilities, factors)
        for_bias = None
        if ctx.needs_input_grad[2]:
            for_bias = (probabilities.t() @ factors).squeeze(1)
        return for_hidden, for_weight, for_bias


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
    """(N,) log Σ_k exp(hidden · weight_k + bias_k), differentiable once; else block by block."""
    if torch.is_grad_enabled():
        return _LogNormaliser.apply(hidden, weight, bias)
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
    """The same with one (K, V) buffer instead of four.

    The scores' buffer becomes P(s | z) in place and is kept for the backward pass; the targets'
    scores are computed anew, as probabilities may underflow. The gradient of the scores, -P Σg and
    + g at the targets, is never built: see `_LinearLogProb`.
    """

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, points: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        rows = product(outputs[targets], points) + bias[targets][:, None]
        probabilities, normalisers = softmax_in_place(product(points, outputs, bias))
        ctx.save_for_backward(outputs, points, probabilities, targets)
        return rows.sub_(normalisers.squeeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        outputs, points, probabilities, targets = ctx.saved_tensors
        factors = gradient.sum(0)[:, None]
        for_points, for_outputs = _normaliser_gradients(points, outputs, probabilities, -factors)
        for_outputs.index_add_(0, targets, product(gradient, points.t()))
        for_points += product(gradient.t(), outputs[targets].t())
        for_bias = None
        if ctx.needs_input_grad[2]:
            for_bias = (probabilities.t() @ factors).neg_().squeeze(1)
            for_bias.index_add_(0, targets, gradient.sum(1))
        return for_outputs, for_points, for_bias, None


def table_log_prob(outputs: Tensor, points: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """(N, K) log P(target | state) for N targets; equals the reference, differentiable once."""
    return _TableLogProb.apply(outputs, points, bias, targets)


def mixture_log_prob_clear(choices: Tensor, log_probs: Tensor) -> Tensor:
    """log Σ_z softmax_z(choices) exp(log_probs_z): (N, K), (N, K) → (N,)."""
    return torch.logsumexp(F.log_softmax(choices, dim=-1) + log_probs, dim=-1)


class _MixtureLogProb(torch.autograd.Function):
    """The same from the weights w and the posterior r alone: gradients are g (r - w) and g r."""

    @staticmethod
    def forward(ctx: Any, choices: Tensor, log_probs: Tensor) -> Tensor:
        posterior, joint = softmax_in_place(choices + log_probs)
        weights, normalisers = softmax_in_place(choices.clone())
        ctx.save_for_backward(weights, posterior)
        return (joint - normalisers).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weights, posterior = ctx.saved_tensors
        gradient = gradient[:, None]
        return (posterior - weights).mul_(gradient), posterior * gradient


def mixture_log_prob(choices: Tensor, log_probs: Tensor) -> Tensor:
    """log p(target | h) of a mixture with softmax weights; equals the reference."""
    return _MixtureLogProb.apply(choices, log_probs)
