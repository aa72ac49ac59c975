"""HMM forward algorithm (filter): the next state, block-sparse; log-space reference, fast scaled.

    a_t ∝ p_t ∘ e_t        the posterior of the state that emitted token t
    p_{t+1} = a_t A        the prediction of the state that emits the next one

The K states form C blocks of K / C (one block: no constraint), and a token is only emitted by the
states of its own block (Chiu and Rush 2020), so that a step costs K² / C instead of K².
`forward_filter_clear` computes in log space; `forward_filter` with matrix products of probabilities
normalised at every step, which is as exact and far faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MIN_SCALE = 1e-30
"""Steps with a scale below this are computed in log space."""


def forward_filter_clear(
    log_predicted: Tensor, log_emitted: Tensor, blocks: Tensor, log_transition: Tensor
) -> Tensor:
    """(B, T, K) log-predictions of the state after each token.

    `log_predicted` (B, K) is the prediction before the first token; `log_emitted` (B, T, K / C) is
    log p(token | state) up to a constant per token, for the states of the token's block (B, T);
    `log_transition` is (K, K). Cost T · K² / C, in memory too.
    """
    rows, time, block_size = log_emitted.shape
    rows_index, predictions = torch.arange(rows, device=blocks.device), []
    from_block = log_transition.view(-1, block_size, log_transition.shape[1])
    for step in range(time):
        block = blocks[:, step]
        joint = log_predicted.view(rows, -1, block_size)[rows_index, block] + log_emitted[:, step]
        belief = torch.log_softmax(joint, dim=-1)
        log_predicted = torch.logsumexp(belief[:, :, None] + from_block[block], dim=1)
        predictions.append(log_predicted)
    return torch.stack(predictions, dim=1) if time else log_emitted.new_zeros(rows, 0, 0)


def forward_filter(
    log_predicted: Tensor, log_emitted: Tensor, blocks: Tensor, log_transition: Tensor
) -> Tensor:
    """As `forward_filter_clear`, by scaled matrix products: equal values and gradients.

    If single precision can't scale a step, the whole batch is computed in log space.
    """
    # A constant for each token cancels in the posterior; this one makes the largest 1.
    max_emitted = log_emitted.detach().amax(-1, keepdim=True)
    emitted = (log_emitted - max_emitted).exp()
    predicted, min_scale = _ScaledFilter.apply(
        log_predicted.exp(), emitted, blocks, log_transition.exp()
    )
    if not min_scale > MIN_SCALE:
        return forward_filter_clear(log_predicted, log_emitted, blocks, log_transition)
    log_probs: Tensor = predicted.clamp_min(torch.finfo(predicted.dtype).tiny).log()
    return log_probs


class _ScaledFilter(torch.autograd.Function):
    """Predictions (B, T, K) as probabilities, and the smallest scale.

    Its gradient runs the recursion backwards and sums the transition's over all tokens of a block
    in one product, where autograd would make a (K, K) for every step. Internally time is first and
    steps write in place: with few states a step is all overhead.
    """

    @staticmethod
    def forward(
        context: Any, predicted: Tensor, emitted: Tensor, blocks: Tensor, transition: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, time, block_size = emitted.shape
        emitted, blocks = emitted.transpose(0, 1).contiguous(), blocks.t().contiguous()
        moves = _BlockTransitions(transition, blocks, block_size)
        predictions = emitted.new_empty(time, rows, len(transition))
        beliefs, scales = torch.empty_like(emitted), emitted.new_empty(time, rows, 1)
        block_predictions, previous = [], predicted
        for step, (token, belief, scale, prediction) in enumerate(
            zip(emitted, beliefs, scales, predictions, strict=True)
        ):
            block_predictions.append(moves.own(previous, step))
            torch.mul(block_predictions[-1], token, out=belief)
            torch.sum(belief, -1, keepdim=True, out=scale)
            belief.div_(scale)
            moves.forward(belief, step, out=prediction)
            previous = prediction
        stacked = torch.stack(block_predictions) if block_predictions else beliefs
        context.save_for_backward(emitted, transition, stacked, beliefs, scales)
        context.moves, context.states = moves, predicted.shape
        min_scale = scales.min() if time else scales.new_ones(())
        context.mark_non_differentiable(min_scale)
        return predictions.transpose(0, 1), min_scale

    @staticmethod
    def backward(context: Any, grad_predictions: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        emitted, transition, block_predictions, beliefs, scales = context.saved_tensors
        moves: _BlockTransitions = context.moves
        # The total gradient of each prediction: from its own use, and from the next step.
        grad_total = grad_predictions.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        grad_initial = grad_predictions.new_zeros(context.states)
        grad_joint = torch.empty_like(beliefs)
        steps = list(zip(grad_total, grad_joint, beliefs, scales, emitted, strict=True))
        for step in reversed(range(len(steps))):
            grad_prediction, gradient, belief, scale, token = steps[step]
            moves.backward(grad_prediction, step, out=gradient)
            gradient.sub_((gradient * belief).sum(-1, keepdim=True)).div_(scale)
            target = grad_initial if step == 0 else grad_total[step - 1]
            moves.add_own(target, gradient, token, step)
        grad_emitted = (grad_joint * block_predictions).transpose(0, 1)
        return grad_initial, grad_emitted, None, moves.expected(beliefs, grad_total, transition)


class _BlockTransitions:
    """Transition products of a step, per block; with one block, for all rows at once."""

    def __init__(self, transition: Tensor, blocks: Tensor, block_size: int) -> None:
        self.inside, self.blocks = block_size, blocks
        self.parts = transition.view(-1, block_size, transition.shape[1]).unbind(0)
        self.one = len(self.parts) == 1
        self.every = torch.arange(blocks.shape[1], device=blocks.device)
        self.groups = [] if self.one else [_by_block(b, len(self.parts)) for b in blocks]

    def own(self, predicted: Tensor, step: int) -> Tensor:
        """(B, K / C) the states of each row's block, of a prediction (B, K)."""
        if self.one:
            return predicted
        return predicted.view(len(predicted), -1, self.inside)[self.every, self.blocks[step]]

    def add_own(self, target: Tensor, gradient: Tensor, token: Tensor, step: int) -> None:
        """target (B, K) += gradient ∘ token (B, K / C) at each row's block."""
        if self.one:
            target.addcmul_(gradient, token)
        else:
            states = target.view(len(target), -1, self.inside)
            states[self.every, self.blocks[step]] += gradient * token

    def forward(self, belief: Tensor, step: int, *, out: Tensor) -> None:
        """(B, K) = posterior (B, K / C) × the rows of the transition that leave its block."""
        if self.one:
            torch.mm(belief, self.parts[0], out=out)
            return
        for block, members in self.groups[step]:
            out[members] = belief[members] @ self.parts[block]

    def backward(self, gradient: Tensor, step: int, *, out: Tensor) -> None:
        """(B, K / C) = gradient (B, K) × the same rows, transposed."""
        if self.one:
            torch.mm(gradient, self.parts[0].t(), out=out)
            return
        for block, members in self.groups[step]:
            out[members] = gradient[members] @ self.parts[block].t()

    def expected(self, beliefs: Tensor, grad_total: Tensor, transition: Tensor) -> Tensor:
        """(K, K) Σ_t a_tᵀ g_t, one product for each block."""
        flat, gradient = beliefs.flatten(0, 1), grad_total.flatten(0, 1)
        if self.one:
            return flat.t() @ gradient
        expected = torch.zeros_like(transition)
        for block, members in _by_block(self.blocks.flatten(), len(self.parts)):
            states = slice(block * self.inside, (block + 1) * self.inside)
            expected[states] = flat[members].t() @ gradient[members]
        return expected


def _by_block(block: Tensor, count: int) -> list[tuple[int, Tensor]]:
    """Each block that occurs, with the rows of its tokens."""
    order = torch.argsort(block, stable=True)
    sizes = torch.bincount(block, minlength=count).tolist()
    parts = torch.split(order, sizes)
    return [(number, rows) for number, rows in enumerate(parts) if len(rows)]
