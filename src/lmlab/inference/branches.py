"""Trees of variables: N variables of K states each, tied to a parent that stands before them.

    score(z) = Σ_i unary[i, z_i] + Σ_{i>0} pairwise[i - 1, z_parent(i), z_i]

As in `chain.py`, which is the tree where every parent is the variable before: unary potentials are
(…, N, K), pairwise ones (…, N - 1, K, K), in logs. `parents` (…, N) are less than their children's
numbers, so that there is no loop and one root; the root's own is not looked at. Rows of different
size are given by `lengths` (…,). Cost N · K² for each row, as for a chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.inference.semirings import LOG, Semiring


def total(
    unary: Tensor,
    pairwise: Tensor,
    parents: Tensor,
    *,
    semiring: Semiring = LOG,
    lengths: Tensor | None = None,
) -> Tensor:
    """(…) the semiring's sum over all K^N assignments, from the leaves to the root."""
    count = unary.shape[-2]
    pairwise = pairwise.expand(*unary.shape[:-2], *pairwise.shape[-3:])
    parents = parents.expand(unary.shape[:-1])
    collected, pairwise = semiring.lift(unary), semiring.lift(pairwise)
    place = torch.arange(count, device=unary.device)
    for child in range(count - 1, 0, -1):
        moved = semiring.times(pairwise[..., child - 1, :, :], collected[..., child, None, :])
        message = semiring.sum(moved, -1)
        receives = place == parents[..., child, None]
        if lengths is not None:
            receives = receives & (child < lengths)[..., None]
        # One, the element that changes nothing, is zero in logs and has no entropy.
        sent = torch.where(receives[..., None], message[..., None, :], 0.0)
        collected = semiring.times(collected, sent)
    return semiring.value(semiring.sum(collected[..., 0, :], -1))
