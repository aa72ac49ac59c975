"""Sums over the states of chains and trees by products of matrices: the fast version of two.

`chain.total` and `branches.total` over the log-semiring take one exponential for each pair of
states and sum, forwards and backwards. Here the pairs are exponentiated once, whatever number of
sums is taken over the same links (tokens known and unknown), and a step is one product. Tested
equal to both; about three times as fast at 64 states.
"""

from __future__ import annotations

import torch
from torch import Tensor


def state_sums(
    unary: Tensor, links: Tensor, lengths: Tensor, parents: Tensor | None = None
) -> Tensor:
    """(C, B) log Σ_z exp(score(z)) for C sets of potentials (C, B, N, K) over links (B, N-1, K, K).

    `parents` (B, N) as in `branches.py`, None for a chain; `lengths` (B,) as there, at least 1.
    What is less than the smallest number times the largest of its sum counts as that.
    """
    collected = list(unary.transpose(0, 1).unbind(2))
    tallest = links.amax((-1, -2), keepdim=True).detach()
    # (B, K', K): the product takes a child's states (B, C, K') to its parent's.
    products = (links - tallest).exp().mT.unbind(1)
    for child in range(len(collected) - 1, 0, -1):
        top = collected[child].amax(-1, keepdim=True).detach()
        reached = (collected[child] - top).exp() @ products[child - 1]
        tiny = torch.finfo(reached.dtype).tiny
        message = reached.clamp(min=tiny).log() + top + tallest[:, child - 1]
        message = torch.where((child < lengths)[:, None, None], message, 0.0)
        if parents is None:
            collected[child - 1] = collected[child - 1] + message
            continue
        for place in range(child):
            here = (parents[:, child] == place)[:, None, None]
            collected[place] = collected[place] + torch.where(here, message, 0.0)
    return torch.logsumexp(collected[0], -1).T
