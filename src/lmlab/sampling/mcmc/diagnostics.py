"""MCMC results and convergence: R-hat, ESS, autocorrelation, chain recording, mixing warnings.

All are computed from a scalar of each text, such as its energy: an array (C, N) of C chains and N
recorded values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.sampling.mcmc.acceptance import TransitionResult
from lmlab.sampling.mcmc.moves import ChainState

ChainValues = NDArray[np.float64]
MIN_VALUES = 4
"""Minimum values per chain for any of these diagnostics: two halves of two."""
MAX_R_HAT = 1.1
"""R-hat above which chains still depend on their initialisation (Gelman and Rubin 1992)."""


def split_r_hat(readings: ChainValues) -> float:
    """Split R-hat √(V / W) over the halves of all chains: 1 if they agree (Gelman et al. 2013).

    W is the mean variance within a half of N / 2 values, V = (N/2 - 1)/(N/2) W + B / (N/2) with B
    the variance between their means times N / 2. Infinite if halves are constant and differ; NaN if
    all values are equal or there are too few.
    """
    halves = _halves(readings)
    if halves is None:
        return math.nan
    length = halves.shape[1]
    within = float(halves.var(axis=1, ddof=1).mean())
    between = length * float(halves.mean(axis=1).var(ddof=1))
    if within == 0:
        return math.nan if between == 0 else math.inf
    return math.sqrt(((length - 1) / length * within + between / length) / within)


def r_hat(readings: ChainValues) -> float:
    """Rank-normalised R-hat: the larger of split R-hat of the ranks and of the folded ranks.

    Vehtari et al. 2021: ranks suit any distribution; folding (distance from the median) detects
    chains with the same location and different scales.
    """
    if not np.isfinite(readings).all() or _halves(readings) is None:
        return math.nan
    folded = np.abs(readings - np.median(readings))
    return _max_defined([split_r_hat(_normal_scores(values)) for values in (readings, folded)])


def effective_sample_size(readings: ChainValues) -> float:
    """Effective sample size: independent values that estimate the mean as well.

    C N / (1 + 2 Σ_t ρ_t), ρ_t the autocorrelation at lag t over the halves of all chains, corrected
    for their disagreement, summed over Geyer's (1992) initial monotone sequence of positive pairs
    ρ_2k + ρ_2k+1. At most C N log10(C N); NaN for constant values. Vehtari et al. 2021.
    """
    halves = _halves(readings)
    if halves is None or not np.isfinite(readings).all():
        return math.nan
    chains, length = halves.shape
    covariances = _autocovariances(halves).mean(axis=0)
    within = covariances[0] * length / (length - 1)
    between = float(halves.mean(axis=1).var(ddof=1))
    variance = within * (length - 1) / length + between
    if variance == 0:
        return math.nan
    correlations = 1 - (within - covariances) / variance
    correlations[0] = 1.0
    total = _initial_monotone_sum(correlations)
    max_size = chains * length * math.log10(chains * length)
    return float(min(chains * length / max(total, 1e-12), max_size))


def autocorrelation(readings: ChainValues, lags: int) -> list[float]:
    """Autocorrelation ρ_0 … ρ_lags within chains, averaged over them; empty for constant values."""
    if readings.shape[1] < 2 or not np.isfinite(readings).all():
        return []
    covariances = _autocovariances(readings).mean(axis=0)[: lags + 1]
    if not covariances[0] > 0:
        return []
    return [float(value) for value in covariances / covariances[0]]


def _halves(readings: ChainValues) -> ChainValues | None:
    """(2 C, N / 2) the halves of each chain, without the middle value if N is odd."""
    chains, length = readings.shape
    if length < MIN_VALUES or chains < 1:
        return None
    half = length // 2
    return np.concatenate([readings[:, :half], readings[:, length - half :]])


def _normal_scores(readings: ChainValues) -> ChainValues:
    """Rank-normalised Φ^-1((r - 3/8) / (S + 1/4)) of S values; ties share their mean rank."""
    _, inverse, counts = np.unique(readings, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks = (last - (counts - 1) / 2)[inverse.reshape(readings.shape)]
    shares = torch.from_numpy((ranks - 0.375) / (readings.size + 0.25))
    scores: ChainValues = torch.special.ndtri(shares).numpy()
    return scores


def _autocovariances(readings: ChainValues) -> ChainValues:
    """(C, N) autocovariances of each chain at all lags, divided by N; by FFT."""
    length = readings.shape[1]
    centred = readings - readings.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * length, axis=1)
    autocovariances: ChainValues = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length] / length
    return autocovariances


def _initial_monotone_sum(correlations: ChainValues) -> float:
    """1 + 2 Σ_t ρ_t over Geyer's initial monotone sequence of pairs."""
    total, lowest = -1.0, math.inf
    for lag in range(0, len(correlations) - 1, 2):
        pair = float(correlations[lag] + correlations[lag + 1])
        if pair <= 0:
            break
        lowest = min(lowest, pair)
        total += 2 * lowest
    return total


MAX_LAG = 40
"""Maximum lag of the reported autocorrelation, in recorded values."""


@dataclass(frozen=True, kw_only=True)
class ChainSample:
    """One text sampled from a chain."""

    text: str
    energy: float
    """In nats, by the result's energy function."""
    tokens: int
    chain: int
    step: int


@dataclass(frozen=True, kw_only=True)
class ConvergenceDiagnostics:
    """Convergence diagnostics of the chains, after the burn-in."""

    acceptance_rate: float
    """Share of proposals accepted; 1 for Gibbs."""
    change_rate: float
    """Share of steps that changed the text."""
    resize_acceptance_rate: float | None
    """Share of insertions and deletions accepted; None if there were none."""
    energy_mean: float
    energy_std: float
    r_hat: float
    """R-hat of the energy, split and rank-normalised (Vehtari et al. 2021); the maximum over
    lengths if chains have different lengths. Near 1 if mixed; infinite if chains stand still."""
    effective_sample_size: float
    """Effective sample size of the energy."""
    recorded: int
    """Number of recorded energies, over all chains."""
    autocorrelation: tuple[float, ...]
    """Autocorrelation of the energy at lags 0, 1, 2 … recorded values."""


@dataclass(frozen=True, kw_only=True)
class ChainTrace:
    """Trace of the chains, recorded every `every` steps from the start."""

    every: int
    energies: tuple[tuple[float, ...], ...]
    """One tuple per chain."""
    accepted: tuple[float, ...]
    """Acceptance rate since the previous record, over all chains."""
    changed: tuple[float, ...]
    """Share of steps that changed a text since the previous record, over all chains."""


@dataclass(frozen=True, kw_only=True)
class McmcResult:
    """Samples of MCMC chains with their target distribution, settings and diagnostics."""

    texts: tuple[ChainSample, ...]
    method: str
    target_distribution: str
    """The stationary distribution, as a sentence."""
    energy: str
    proposal: str
    start: str
    order: str
    masks: int
    chains: int
    steps: int
    """Steps per chain."""
    burn_in: int
    thin: int
    temperature: float
    anneal: float | None
    proposal_temperature: float
    text: str | None
    """The initial text, if given; at most one of text, template and prefix is."""
    positions: tuple[int, ...]
    """The positions of `text` that are resampled; empty for all."""
    template: str | None
    """The text around the free positions."""
    prefix: str
    """The fixed prefix of all texts."""
    lengths: tuple[int, int] | None
    token_cost: float
    seed: int
    diagnostics: ConvergenceDiagnostics
    trace: ChainTrace
    seconds: float
    interrupted: bool = False
    warnings: tuple[str, ...] = field(default=())
    """Warnings for the user: chains that have not mixed, unknown words."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class ChainMonitor:
    """Records energies and acceptances while chains run."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.energies: list[Tensor] = []
        self.shares: list[tuple[float, float]] = []
        self._since = torch.zeros(3, dtype=torch.float64)
        self._refills = torch.zeros(3, dtype=torch.float64)
        self._resizes = torch.zeros(3, dtype=torch.float64)

    def count(self, transition: TransitionResult, *, burning: bool, resizing: bool) -> None:
        """Count the accepted and changed proposals of one step of all chains."""
        accepted, changed = int(transition.accepted.sum()), int(transition.changed.sum())
        counts = torch.tensor([accepted, changed, len(transition.accepted)], dtype=torch.float64)
        self._since += counts
        if not burning:
            totals = self._resizes if resizing else self._refills
            totals += counts

    def read(self, energies: Tensor) -> None:
        """Record the energies (C,) of the current texts and the rates since the last record."""
        self.energies.append(energies.double().cpu())
        accepted, changed, steps = self._since.tolist()
        self.shares.append((accepted / steps, changed / steps) if steps else (math.nan, math.nan))
        self._since.zero_()

    def trace(self) -> ChainTrace:
        readings = self.matrix()
        return ChainTrace(
            every=self.every,
            energies=tuple(tuple(row) for row in readings.tolist()),
            # The first record precedes any step.
            accepted=tuple(share for share, _ in self.shares[1:]),
            changed=tuple(share for _, share in self.shares[1:]),
        )

    def matrix(self) -> ChainValues:
        """(C, N) recorded energies."""
        return torch.stack(self.energies, 1).numpy()

    def mixing(self, state: ChainState, burn_in: int) -> ConvergenceDiagnostics:
        """The diagnostics of the values recorded after the burn-in."""
        recorded = self.matrix()[:, -(-burn_in // self.every) :]
        lengths = [0] * len(recorded) if self._resizes.any() else state.batch.lengths.tolist()
        groups = [
            recorded[[row for row, row_length in enumerate(lengths) if row_length == length]]
            for length in sorted(set(lengths))
        ]
        accepted, changed, steps = (self._refills + self._resizes).tolist()
        finite = recorded[np.isfinite(recorded)]
        return ConvergenceDiagnostics(
            acceptance_rate=_share(accepted, steps),
            change_rate=_share(changed, steps),
            resize_acceptance_rate=self._resize_share(),
            energy_mean=float(finite.mean()) if finite.size else math.nan,
            energy_std=float(finite.std()) if finite.size else math.nan,
            r_hat=_max_defined([r_hat(group) for group in groups]),
            effective_sample_size=float(sum(effective_sample_size(group) for group in groups)),
            recorded=int(recorded.size),
            autocorrelation=tuple(autocorrelation(recorded, MAX_LAG)),
        )

    def _resize_share(self) -> float | None:
        # At the minimum and maximum length a proposal may equal the current text: no change.
        _, changed, steps = self._resizes.tolist()
        return _share(changed, steps) if steps else None


def _share(part: float, total: float) -> float:
    return part / total if total else math.nan


def _max_defined(values: Sequence[float]) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return max(finite) if finite else math.nan


def mixing_warnings(diagnostics: ConvergenceDiagnostics) -> list[str]:
    """Warnings for chains that have not mixed."""
    if diagnostics.r_hat > MAX_R_HAT:
        return [
            f"the chains have not mixed: R-hat of their energies is {diagnostics.r_hat:.2f} and "
            f"should be below {MAX_R_HAT}, so the texts still depend on where each chain began; "
            "run more --steps, raise the temperature, or --anneal from a higher one."
        ]
    if diagnostics.recorded and diagnostics.change_rate == 0:
        return [
            "the chains never moved after the burn-in: no proposal that changes a text was "
            "accepted; run more --steps, or raise the temperature."
        ]
    if math.isnan(diagnostics.r_hat):
        return [
            "too few recorded states to diagnose whether the chains have mixed; run more --steps."
        ]
    return []
