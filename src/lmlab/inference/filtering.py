"""The forward recursion of a hidden Markov chain, in which each token tells a block of states.

    a_t ∝ p_t ∘ e_t        the belief about the state that emitted token t
    p_{t+1} = a_t A        the prediction of the state that emits the next one

The K states stand in C blocks of K / C (one block: no constraint), and a token can only come from
the states of its own block (Chiu and Rush 2020), so that a step costs K² / C instead of K².
`filter_clear` computes with logarithms; `filter_states` with matrix products of probabilities that
are normalised at every step, which is as exact and far faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FAINTEST = 1e-30
"""A step less probable than this given the states left is computed with logarithms."""


def filter_clear(
    log_predicted: Tensor, log_emitted: Tensor, blocks: Tensor, log_transition: Tensor
) -> Tensor:
    """(B, T, K) log-predictions of the state after each token.

    `log_predicted` (B, K) is the prediction before the first token; `log_emitted` (B, T, K / C) is
    log p(token | state) up to a constant for each token, for the states of the block (B, T) that
    the token comes from; `log_transition` is (K, K). Cost T · K² / C, in memory too.
    """
    rows, time, inside = log_emitted.shape
    every, predictions = torch.arange(rows, device=blocks.device), []
    from_block = log_transition.view(-1, inside, log_transition.shape[1])
    for place in range(time):
        block = blocks[:, place]
        joint = log_predicted.view(rows, -1, inside)[every, block] + log_emitted[:, place]
        belief = torch.log_softmax(joint, dim=-1)
        log_predicted = torch.logsumexp(belief[:, :, None] + from_block[block], dim=1)
        predictions.append(log_predicted)
    return torch.stack(predictions, dim=1) if time else log_emitted.new_zeros(rows, 0, 0)


def filter_states(
    log_predicted: Tensor, log_emitted: Tensor, blocks: Tensor, log_transition: Tensor
) -> Tensor:
    """As `filter_clear`, by scaled matrix products: equal to it, values and gradients.

    A step that single precision can't scale sends the whole batch to the clear version.
    """
    # A constant for each token cancels in the belief; this one keeps the largest at one.
    strongest = log_emitted.detach().amax(-1, keepdim=True)
    emitted = (log_emitted - strongest).exp()
    predicted, faintest = _ScaledFilter.apply(
        log_predicted.exp(), emitted, blocks, log_transition.exp()
    )
    if not faintest > FAINTEST:
        return filter_clear(log_predicted, log_emitted, blocks, log_transition)
    return predicted.clamp_min(torch.finfo(predicted.dtype).tiny).log()


class _ScaledFilter(torch.autograd.Function):
    """Predictions (B, T, K) in probabilities, and the smallest scale met.

    Its gradient runs the recursion backwards and adds up the transition's over all tokens of a
    block in one product, where autograd would make a (K, K) for every step.
    """

    @staticmethod
    def forward(
        context: Any, predicted: Tensor, emitted: Tensor, blocks: Tensor, transition: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows, time, inside = emitted.shape
        groups = [_by_block(block, len(transition) // inside) for block in blocks.unbind(1)]
        predictions = emitted.new_empty(time, rows, len(transition))
        beliefs, scales = torch.empty_like(emitted), emitted.new_empty(rows, time)
        before = predicted
        for place, grouped in enumerate(groups):
            joint = _own_block(before, blocks[:, place], inside) * emitted[:, place]
            scales[:, place] = joint.sum(-1)
            beliefs[:, place] = joint / scales[:, place, None]
            for block, members in grouped:
                states = slice(block * inside, (block + 1) * inside)
                if members is None:
                    torch.mm(beliefs[:, place], transition[states], out=predictions[place])
                else:
                    predictions[place, members] = beliefs[members, place] @ transition[states]
            before = predictions[place]
        context.save_for_backward(
            predicted, emitted, blocks, transition, predictions, beliefs, scales
        )
        context.groups = groups
        faintest = scales.min() if scales.numel() else scales.new_ones(())
        context.mark_non_differentiable(faintest)
        return predictions.transpose(0, 1), faintest

    @staticmethod
    def backward(context: Any, arriving: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        predicted, emitted, blocks, transition, predictions, beliefs, scales = context.saved_tensors
        time, inside = emitted.shape[1:]
        # What each prediction's gradient is in all: from its own use, and from the next step.
        whole = arriving.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        of_emitted, of_predicted = torch.empty_like(emitted), torch.zeros_like(predicted)
        for place in reversed(range(time)):
            of_belief = torch.empty_like(beliefs[:, place])
            for block, members in context.groups[place]:
                states = slice(block * inside, (block + 1) * inside)
                if members is None:
                    of_belief = whole[place] @ transition[states].t()
                else:
                    of_belief[members] = whole[place, members] @ transition[states].t()
            inner = (of_belief * beliefs[:, place]).sum(-1, keepdim=True)
            of_joint = (of_belief - inner) / scales[:, place, None]
            before = predicted if place == 0 else predictions[place - 1]
            of_emitted[:, place] = of_joint * _own_block(before, blocks[:, place], inside)
            target = of_predicted if place == 0 else whole[place - 1]
            _add_to_block(target, of_joint * emitted[:, place], blocks[:, place])
        of_transition = _expected_moves(beliefs, whole, blocks, transition)
        return of_predicted, of_emitted, None, of_transition


def _by_block(block: Tensor, count: int) -> list[tuple[int, Tensor | None]]:
    """Each block that a column of tokens has, with the rows that have it; None for all rows."""
    if count == 1:
        return [(0, None)]
    order = torch.argsort(block, stable=True)
    sizes = torch.bincount(block, minlength=count).tolist()
    parts = torch.split(order, sizes)
    return [(number, rows) for number, rows in enumerate(parts) if len(rows)]


def _own_block(values: Tensor, block: Tensor, inside: int) -> Tensor:
    """(B, K / C) of values (B, K) those of each row's block."""
    if values.shape[1] == inside:
        return values
    every = torch.arange(len(values), device=values.device)
    return values.view(len(values), -1, inside)[every, block]


def _add_to_block(values: Tensor, added: Tensor, block: Tensor) -> None:
    """values (B, K) += added (B, K / C) at each row's block."""
    every = torch.arange(len(values), device=values.device)
    values.view(len(values), -1, added.shape[1])[every, block] += added


def _expected_moves(beliefs: Tensor, whole: Tensor, blocks: Tensor, transition: Tensor) -> Tensor:
    """(K, K) Σ_t a_tᵀ g_t, one product for each block."""
    inside = beliefs.shape[-1]
    flat = beliefs.transpose(0, 1).reshape(-1, inside)
    gradient, block = whole.reshape(len(flat), -1), blocks.t().reshape(-1)
    if inside == len(transition):
        return flat.t() @ gradient
    moves = torch.zeros_like(transition)
    for number, members in _by_block(block, len(transition) // inside):
        moves[number * inside : (number + 1) * inside] = flat[members].t() @ gradient[members]
    return moves
