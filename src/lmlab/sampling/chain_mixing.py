"""Whether Markov chains have mixed: split R-hat, effective sample size, autocorrelation.

All of them from one number of each text along each chain, such as its energy: an array (C, N) of
C chains and N readings.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

Readings = NDArray[np.float64]
LEAST_READINGS = 4
"""Of a chain, for any of these figures: two halves of two."""
MIXED = 1.1
"""R-hat above which chains have not forgotten where they began (Gelman and Rubin 1992)."""


def split_r_hat(readings: Readings) -> float:
    """√(V / W) over the halves of all chains: 1 where they agree (Gelman et al. 2013).

    W is the mean variance inside a half of N / 2 readings, V = (N/2 - 1)/(N/2) W + B / (N/2) with B
    the variance between their means times N / 2. Infinite where halves stand still apart from each
    other; not a number where nothing moves at all, or there are too few readings.
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


def r_hat(readings: Readings) -> float:
    """Split R-hat of the readings' ranks, or of how far they are from the median, if that is more.

    Vehtari et al. 2021: ranks make it fit for any law, and the second finds chains that have one
    middle and different spreads.
    """
    if not np.isfinite(readings).all() or _halves(readings) is None:
        return math.nan
    folded = np.abs(readings - np.median(readings))
    found = [split_r_hat(_normal_scores(each)) for each in (readings, folded)]
    known = [each for each in found if not math.isnan(each)]
    return max(known) if known else math.nan


def effective_size(readings: Readings) -> float:
    """How many independent readings tell the mean as well as these (Vehtari et al. 2021).

    C N / (1 + 2 Σ_t ρ_t), where ρ_t is the autocorrelation at lag t over the halves of all chains,
    less where they disagree, summed as long as pairs ρ_2k + ρ_2k+1 are positive, and these made to
    fall (Geyer 1992). At most C N log10(C N). Not a number where nothing moves.
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
    most = chains * length * math.log10(chains * length)
    return min(chains * length / max(total, 1e-12), most)


def autocorrelation(readings: Readings, lags: int) -> list[float]:
    """ρ_0 … ρ_lags inside the chains, over all of them; nothing where nothing moves."""
    if readings.shape[1] < 2 or not np.isfinite(readings).all():
        return []
    covariances = _autocovariances(readings).mean(axis=0)[: lags + 1]
    if not covariances[0] > 0:
        return []
    return [float(value) for value in covariances / covariances[0]]


def _halves(readings: Readings) -> Readings | None:
    """(2 C, N / 2) the halves of each chain, the middle reading left out where N is odd."""
    chains, length = readings.shape
    if length < LEAST_READINGS or chains < 1:
        return None
    half = length // 2
    return np.concatenate([readings[:, :half], readings[:, length - half :]])


def _normal_scores(readings: Readings) -> Readings:
    """Ranks r of S readings as Φ^-1((r - 3/8) / (S + 1/4)), equals sharing their mean rank."""
    _, inverse, counts = np.unique(readings, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks = (last - (counts - 1) / 2)[inverse.reshape(readings.shape)]
    shares = torch.from_numpy((ranks - 0.375) / (readings.size + 0.25))
    scores: Readings = torch.special.ndtri(shares).numpy()
    return scores


def _autocovariances(readings: Readings) -> Readings:
    """(C, N) of each chain at all lags, each divided by N; by Fourier transform."""
    length = readings.shape[1]
    apart = readings - readings.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(apart, n=2 * length, axis=1)
    found: Readings = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :length] / length
    return found


def _initial_monotone_sum(correlations: Readings) -> float:
    """1 + 2 Σ_t ρ_t over Geyer's initial monotone sequence of pairs."""
    total, lowest = -1.0, math.inf
    for lag in range(0, len(correlations) - 1, 2):
        pair = float(correlations[lag] + correlations[lag + 1])
        if pair <= 0:
            break
        lowest = min(lowest, pair)
        total += 2 * lowest
    return total
