"""Product of experts, each a mixture: G distributions multiplied and renormalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.parts import Emission, HiddenStates
from lmlab.emissions.mixture import MixtureEmission

ROWS_AT_ONCE = 512
"""Rows of (N, V) held at once in scoring."""


class ProductOfMixtures(Emission):
    """Product of experts p(s | h) = Π_g f_g(s | h) / Z(h), Z(h) = Σ_s Π_g f_g(s | h); f_g mixtures.

    A product of experts (Hinton 2002) with K^G joint states at the cost of G · K. No f_g exceeds
    one, so Z ≤ 1 and Π_g f_g is a lower bound of p, which `log_bound` gives without building any
    (N, V); the exact log-probability costs G · N · K · V. Hidden (…, W).
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})

    def __init__(self, factors: Sequence[MixtureEmission]) -> None:
        super().__init__()
        self.factors = nn.ModuleList(factors)

    def _mixtures(self) -> list[MixtureEmission]:
        return [factor for factor in self.factors if isinstance(factor, MixtureEmission)]

    def log_bound(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) Σ_g log f_g(target | h), never above the log-probability."""
        each = [factor.log_prob(hidden, targets) for factor in self._mixtures()]
        return torch.stack(each).sum(0)

    def log_products(self, hidden: Tensor) -> Tensor:
        """(…, V) Σ_g log f_g(s | h), before the normaliser."""
        first, *others = self._mixtures()
        total = first.log_probs(hidden)
        for factor in others:
            total = total + factor.log_probs(hidden)
        return total

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        # In blocks of rows, so that memory does not grow with the text.
        blocks = [self.log_products(rows).logsumexp(-1) for rows in hidden.split(ROWS_AT_ONCE)]
        return self.log_bound(hidden, targets) - torch.cat(blocks)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return torch.log_softmax(self.log_products(hidden), dim=-1)

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        use = [f.log_weights(hidden.values).exp().flatten(0, -2).mean(0) for f in self._mixtures()]
        return {
            "mixture use": Capture(
                values=torch.stack(use),
                axes=("choice", "state"),
                caption="For each factor of the product, the share of all predictions that each of "
                "its states carries.",
                sums_to_one="state",
                titles={"choice": "factor"},
            ),
            "looseness": Capture(
                values=-torch.logsumexp(self.log_products(hidden.values), dim=-1),
                axes=("batch", "time"),
                caption="Nats by which the bound lies below the log-probability of each token.",
                unit="nats",
            ),
        }
