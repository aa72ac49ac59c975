"""MCMC schedules: the scan order of resampled positions, steps, burn-in, thinning, annealing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.errors import UserError


class ScanOrder(Protocol):
    """Scan order: which positions are masked at a step, independently of their tokens."""

    @property
    def name(self) -> str:
        """sequential or random."""
        ...

    def positions(
        self, free: Tensor, *, step: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """(C, T) bool: a subset of the free positions (C, T) of each row."""
        ...


@dataclass(frozen=True)
class RandomScan:
    """Random scan: `masks` free positions, uniformly."""

    masks: int = 1
    name: str = "random"

    def positions(
        self, free: Tensor, *, step: int, generator: torch.Generator | None = None
    ) -> Tensor:
        ranks = torch.rand(free.shape, generator=generator, dtype=torch.float64).to(free.device)
        first = ranks.masked_fill(~free, -1.0).topk(min(self.masks, free.shape[1]), dim=1).indices
        return torch.zeros_like(free).scatter(1, first, True) & free


@dataclass(frozen=True)
class SystematicScan:
    """Systematic scan: free positions from left to right, `masks` at a time, cyclically."""

    masks: int = 1
    name: str = "sequential"

    def positions(
        self, free: Tensor, *, step: int, generator: torch.Generator | None = None
    ) -> Tensor:
        block = (free.long().cumsum(1) - 1) // self.masks
        blocks = (free.sum(1) + self.masks - 1) // self.masks
        return free & (block == (step % blocks.clamp(min=1))[:, None])


SCAN_ORDERS: dict[str, Callable[[int], ScanOrder]] = {
    "sequential": SystematicScan,
    "random": RandomScan,
}


@dataclass(frozen=True, kw_only=True)
class ChainSchedule:
    """Number of steps, temperature, burn-in and thinning of the chains."""

    steps: int
    """Steps per chain, burn-in included."""
    burn_in: int
    """Steps before the first sample."""
    thin: int
    """Steps between two samples of a chain."""
    samples_per_chain: int
    """Samples per chain: the last ones."""
    temperature: float = 1.0
    """Temperature τ of the target distribution."""
    initial_temperature: float | None = None
    """Temperature at the start of the burn-in, if annealed."""

    def __post_init__(self) -> None:
        for name, value, minimum in (
            ("number of steps", self.steps, 1),
            ("burn-in", self.burn_in, 0),
            ("thinning", self.thin, 1),
        ):
            if value < minimum:
                raise UserError(f"the {name} must be {minimum} or more, got {value}.")
        for temperature in (self.temperature, self.initial_temperature):
            if temperature is not None and not 0 < temperature < float("inf"):
                raise UserError(f"a temperature must be above 0, got {temperature:g}.")
        if self.initial_temperature is not None and self.burn_in == 0:
            raise UserError("annealing needs a burn-in, and there is none; give --burn-in.")
        needed = self.thin * (self.samples_per_chain - 1) + 1
        if self.steps - self.burn_in < needed:
            raise UserError(
                f"{self.samples_per_chain} texts per chain, one every {self.thin} steps, need "
                f"{needed} steps, and {max(self.steps - self.burn_in, 0)} remain after the "
                f"burn-in of {self.burn_in}; give more --steps or --chains, or sample fewer "
                "texts."
            )

    def temperature_at(self, step: int) -> float:
        """Geometric annealing from `initial_temperature` during the burn-in; then constant."""
        if self.initial_temperature is None or step >= self.burn_in:
            return self.temperature
        return float(
            self.initial_temperature
            * (self.temperature / self.initial_temperature) ** (step / self.burn_in)
        )

    def is_sample(self, steps_made: int) -> bool:
        """Whether the texts after `done` steps are samples."""
        remaining = self.steps - steps_made
        return remaining % self.thin == 0 and remaining // self.thin < self.samples_per_chain
