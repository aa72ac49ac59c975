"""Prefix probabilities of a PCFG: how probable it is that a sentence begins with given words.

The sum over all leftmost derivations whose first words are these (Jelinek and Lafferty 1991). What
follows the prefix is free, so an improper grammar, whose derivations may not end, is no problem.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.inference.inside import Chart, Rules, grow_scaled, pairings


def prefix_probabilities(chart: Chart, rules: Rules) -> Chart:
    """From the inside chart of normalised rules to log P(symbol yields the span, and maybe more).

        prefix(A, i…j) = Σ_{A→B C} prefix(B, i…j) + Σ_{A→B C, k} inside(B, i…k) prefix(C, k…j)

    The first sum is recursive in left children; its closure (I - L)⁻¹, with L[A, B] = Σ_C P(A → B
    C), covers all depths. Cost: as the inside algorithm's.
    """
    n = rules.nonterminal_count
    left_child = rules.binary.exp().sum(-1)
    identity = torch.eye(n, dtype=left_child.dtype, device=left_child.device)
    closure = torch.linalg.inv(identity - left_child[:, :n])
    found = Chart(chart.words, {1: _log_product(chart.words, closure @ left_child[:, n:])})
    for width in range(2, chart.words.shape[-2] + 1):
        grown = grow_scaled(list(pairings(width, chart, found)), rules)
        found.nonterminals[width] = _log_product(grown, closure)
    return found


def _log_product(logs: Tensor, matrix: Tensor) -> Tensor:
    """log(M exp(x)) for the vectors x in the last dimension."""
    top = logs.detach().amax(-1, keepdim=True)
    product = (logs - top).exp() @ matrix.t()
    return product.clamp_min(torch.finfo(product.dtype).tiny).log() + top
