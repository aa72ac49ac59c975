"""Paired bootstrap: confidence interval and p-value of the difference between two models.

Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation: sentences are
resampled with replacement, the same ones for both models, and the difference is recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_BLOCKS = 50_000
"""Above this many sentences, neighbours are resampled in blocks, which bounds the work."""
CHUNK_NUMBERS = 4_000_000


@dataclass(frozen=True, kw_only=True)
class DifferenceInterval:
    """A difference with its 95 % interval and two-sided p-value."""

    value: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    totals: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    seed: int = 0,
    resamples: int = 2000,
) -> NDArray[np.float64]:
    """Bootstrap replicates (R, M): Σ totals / Σ counts of M models over R resamples of N sentences.

    totals: (N, M) nats of each sentence by each model; counts: (N, M) its tokens or characters.
    Sums are divided once, so that sentences weigh by their length. Cost: O(R N M).
    """
    totals, counts = _in_blocks(totals), _in_blocks(counts)
    sentences = len(totals)
    generator = np.random.default_rng(seed)
    ratios = []
    chunk = max(1, CHUNK_NUMBERS // sentences)
    for done in range(0, resamples, chunk):
        weights = np.stack(
            [
                np.bincount(generator.integers(0, sentences, sentences), minlength=sentences)
                for _ in range(min(chunk, resamples - done))
            ]
        ).astype(np.float64)
        ratios.append((weights @ totals) / np.maximum(weights @ counts, 1.0))
    return np.concatenate(ratios)


def mean_interval(
    values: NDArray[np.float64], weights: NDArray[np.float64], *, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval of the weighted mean Σ w v / Σ w; the weights add up to about N."""
    means = paired_bootstrap((weights * values)[:, None], weights[:, None], seed=seed)[:, 0]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def interval(
    ratios: NDArray[np.float64], value: float, first: int, second: int
) -> DifferenceInterval:
    """Bootstrap interval of the difference of two models (columns of `ratios`) around `value`.

    The interval holds the middle 95 % of the resampled differences; the p-value is twice the share
    of them on the other side of zero, with one added to numerator and denominator (Davison and
    Hinkley 1997), so it is never 0.
    """
    differences = ratios[:, first] - ratios[:, second]
    low, high = np.quantile(differences, [0.025, 0.975])
    beyond = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * (beyond + 1) / (len(differences) + 1))
    return DifferenceInterval(value=value, low=float(low), high=float(high), p_value=p_value)


def _in_blocks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(values) <= MAX_BLOCKS:
        return values
    starts = np.linspace(0, len(values), MAX_BLOCKS, endpoint=False).astype(np.int64)
    return np.add.reduceat(values, starts, axis=0)
