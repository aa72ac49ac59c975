"""Truncation sampling: temperature, top-k and nucleus filters on the next-token distribution.

Each filter is a function from `Categorical` to `Categorical`, so they compose in any order; the
result is renormalised. They change what is sampled, never the reported log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError


class DistributionFilter(Protocol):
    """A filter of the next token's distribution, row by row."""

    def __call__(self, distribution: Categorical) -> Categorical: ...


@dataclass(frozen=True)
class Temperature:
    """Temperature p_i^(1/t) / Σ_j p_j^(1/t): below 1 sharper, above 1 flatter, at 1 the same."""

    value: float

    def __post_init__(self) -> None:
        if not 0 < self.value < float("inf"):
            raise UserError(
                f"a temperature must be above 0, got {self.value:g}; for the most probable "
                "token every time choose greedy decoding."
            )

    def __call__(self, distribution: Categorical) -> Categorical:
        log_probs = distribution.log_probs.double()
        # Shift the maximum to 0 first, so that even a tiny temperature leaves it finite.
        above = log_probs - log_probs.amax(-1, keepdim=True)
        return Categorical(torch.log_softmax(above / self.value, -1))


@dataclass(frozen=True)
class TopK:
    """Top-k sampling: only the k most probable tokens (Fan et al. 2018); ties by lower id."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"top-k must be 1 or more, got {self.count}.")

    def __call__(self, distribution: Categorical) -> Categorical:
        log_probs = distribution.log_probs
        order = log_probs.argsort(dim=-1, descending=True, stable=True)
        dropped = order[..., self.count :]
        return Categorical(torch.log_softmax(log_probs.scatter(-1, dropped, float("-inf")), -1))


@dataclass(frozen=True)
class TopP:
    """Nucleus (top-p) sampling: the fewest most probable tokens whose mass reaches p.

    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration.
    """

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, got {self.mass:g}.")

    def __call__(self, distribution: Categorical) -> Categorical:
        if self.mass == 1:
            return distribution
        log_probs = distribution.log_probs
        sorted_log_probs, order = log_probs.sort(dim=-1, descending=True, stable=True)
        probs = sorted_log_probs.double().exp()
        # A token stays if those before it have not reached the mass; the first always stays. The
        # margin keeps rounding from letting in one more where a sum reaches p exactly.
        outside = (probs.cumsum(-1) - probs) >= self.mass - 1e-6
        outside[..., 0] = False
        kept = sorted_log_probs.masked_fill(outside, float("-inf"))
        back = torch.full_like(log_probs, float("-inf")).scatter(-1, order, kept)
        return Categorical(torch.log_softmax(back, -1))


def make_filters(
    *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> tuple[DistributionFilter, ...]:
    """The given filters, in the usual order: temperature, then top-k, then top-p."""
    chosen: list[DistributionFilter] = []
    if temperature != 1.0:
        chosen.append(Temperature(temperature))
    if top_k is not None:
        chosen.append(TopK(top_k))
    if top_p is not None:
        chosen.append(TopP(top_p))
    return tuple(chosen)


def apply_filters(steps: Sequence[DistributionFilter], distribution: Categorical) -> Categorical:
    """Apply the filters in order."""
    for step in steps:
        distribution = step(distribution)
    return distribution
