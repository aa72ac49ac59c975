"""What came of Markov chains: their texts, and the figures that say whether to believe them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor

from lmlab.sampling.chain_kernels import Stepped
from lmlab.sampling.chain_mixing import (
    MIXED,
    Readings,
    autocorrelation,
    effective_size,
    r_hat,
)
from lmlab.sampling.chain_moves import ChainState

LAGS = 40
"""Readings that the autocorrelation is given for."""


@dataclass(frozen=True, kw_only=True)
class ChainText:
    """A text that a chain came to."""

    text: str
    energy: float
    """In nats; by the energy that the record names."""
    tokens: int
    chain: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How chains moved, and whether they forgot where they began; all after the burn-in."""

    acceptance: float
    """Share of the proposals that were taken; Gibbs takes all."""
    changed: float
    """Share of the steps after which the text was another one."""
    resize_acceptance: float | None
    """Share of the changes of length that were taken; None where there were none."""
    energy_mean: float
    energy_deviation: float
    r_hat: float
    """Of the energy, split and rank-normalised (Vehtari et al. 2021); the worst over lengths where
    chains of different lengths ran. Near 1 if they have mixed; infinite if they stand still."""
    effective_size: float
    """Independent energies that would tell their mean as well."""
    readings: int
    """Energies that these are from, over all chains."""
    autocorrelation: tuple[float, ...]
    """Of the energy, at lags of 0, 1, 2 … readings."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What was read along the way, every `every` steps from the start on."""

    every: int
    energies: tuple[tuple[float, ...], ...]
    """A chain each."""
    accepted: tuple[float, ...]
    """Share of proposals taken since the reading before, over all chains."""
    changed: tuple[float, ...]
    """Share of steps that changed a text since the reading before, over all chains."""


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Texts of Markov chains, what law they are meant to have, and how far to trust that."""

    texts: tuple[ChainText, ...]
    method: str
    law: str
    """A sentence: what distribution the chain has in the end."""
    energy: str
    proposal: str
    start: str
    order: str
    masks: int
    chains: int
    steps: int
    """Made by each chain."""
    burn_in: int
    thin: int
    temperature: float
    anneal: float | None
    proposal_temperature: float
    text: str | None
    """What the texts have in common, one of these at most: what they began from, …"""
    positions: tuple[int, ...]
    """of which only these tokens move, or all where there are none;"""
    template: str | None
    """what stands around the places that move;"""
    prefix: str
    """how all of them begin."""
    lengths: tuple[int, int] | None
    token_cost: float
    seed: int
    mixing: Mixing
    trace: Trace
    seconds: float
    interrupted: bool = False
    warnings: tuple[str, ...] = field(default=())
    """Sentences for the user: chains that have not mixed, words that are unknown."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Watch:
    """Reads energies and decisions while chains run."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.energies: list[Tensor] = []
        self.shares: list[tuple[float, float]] = []
        self._since = torch.zeros(3, dtype=torch.float64)
        self._refills = torch.zeros(3, dtype=torch.float64)
        self._resizes = torch.zeros(3, dtype=torch.float64)

    def count(self, stepped: Stepped, *, burning: bool, resizing: bool) -> None:
        """One step of all chains: taken and changed."""
        taken, changed = int(stepped.accepted.sum()), int(stepped.changed.sum())
        found = torch.tensor([taken, changed, len(stepped.accepted)], dtype=torch.float64)
        self._since += found
        if not burning:
            totals = self._resizes if resizing else self._refills
            totals += found

    def read(self, energies: Tensor) -> None:
        """The energies (C,) of the present texts; the shares since the last time."""
        self.energies.append(energies.double().cpu())
        taken, changed, steps = self._since.tolist()
        self.shares.append((taken / steps, changed / steps) if steps else (math.nan, math.nan))
        self._since.zero_()

    def trace(self) -> Trace:
        readings = self.matrix()
        return Trace(
            every=self.every,
            energies=tuple(tuple(row) for row in readings.tolist()),
            # The first reading is before any step.
            accepted=tuple(share for share, _ in self.shares[1:]),
            changed=tuple(share for _, share in self.shares[1:]),
        )

    def matrix(self) -> Readings:
        """(C, readings)."""
        return torch.stack(self.energies, 1).numpy()

    def mixing(self, state: ChainState, burn_in: int) -> Mixing:
        """Figures over the readings after the burn-in."""
        kept = self.matrix()[:, -(-burn_in // self.every) :]
        lengths = [0] * len(kept) if self._resizes.any() else state.batch.lengths.tolist()
        groups = [
            kept[[row for row, each in enumerate(lengths) if each == length]]
            for length in sorted(set(lengths))
        ]
        taken, changed, steps = (self._refills + self._resizes).tolist()
        moved = kept[np.isfinite(kept)]
        return Mixing(
            acceptance=_share(taken, steps),
            changed=_share(changed, steps),
            resize_acceptance=self._resize_share(),
            energy_mean=float(moved.mean()) if moved.size else math.nan,
            energy_deviation=float(moved.std()) if moved.size else math.nan,
            r_hat=_worst([r_hat(group) for group in groups]),
            effective_size=float(sum(effective_size(group) for group in groups)),
            readings=int(kept.size),
            autocorrelation=tuple(autocorrelation(kept, LAGS)),
        )

    def _resize_share(self) -> float | None:
        # At the least and the greatest length a proposal may be the same text, which is no change.
        _, changed, steps = self._resizes.tolist()
        return _share(changed, steps) if steps else None


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _worst(found: Sequence[float]) -> float:
    known = [each for each in found if not math.isnan(each)]
    return max(known) if known else math.nan


def mixing_warnings(mixing: Mixing) -> list[str]:
    """Sentences for chains that are not to be believed."""
    if mixing.r_hat > MIXED:
        return [
            f"the chains have not mixed: R-hat of their energies is {mixing.r_hat:.2f} and should "
            f"be below {MIXED}, so the texts still tell where each chain began; run more --steps, "
            "raise the temperature, or --anneal from a higher one."
        ]
    if mixing.readings and mixing.changed == 0:
        return [
            "the chains never moved after the burn-in: no proposal was taken that changed a text; "
            "run more --steps, or raise the temperature."
        ]
    if math.isnan(mixing.r_hat):
        return ["too few readings to tell whether the chains have mixed; run more --steps."]
    return []
