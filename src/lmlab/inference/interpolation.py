"""Weights of a linear interpolation by expectation maximisation (Jelinek and Mercer 1980)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-7
"""Nats per token by which the fit may lie below the optimum."""
MAX_ITERATIONS = 5_000


@dataclass(frozen=True, kw_only=True)
class InterpolationFit:
    """Fitted weights of a linear interpolation."""

    weights: tuple[float, ...]
    nats_per_token: float
    """The loss of the mixture on the text."""
    iterations: int
    gap: float
    """An upper bound of how far its loss is above the optimum, in nats per token."""


def interpolated_log_probs(
    log_probs: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N,) log Σ_k w_k p_k of log-probabilities (N, K); -inf where all components with a weight
    give zero."""
    with np.errstate(divide="ignore"):
        terms = log_probs + np.log(weights)
    largest = terms.max(1, initial=-np.inf)
    finite = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(finite + np.log(np.exp(terms - finite[:, None]).sum(1)))


def fit_weights(
    log_probs: NDArray[np.float64],
    *,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> InterpolationFit:
    """The weights w that maximise L(w) = 1/N Σ_t log Σ_k w_k p_k(x_t), by EM from equal ones.

    log_probs: (N, K) of the tokens of a held-out text by each component; every token must be
    possible by one of them. An iteration multiplies each weight by its gradient,

        g_k = 1/N Σ_t p_k(x_t) / Σ_j w_j p_j(x_t),    w_k ← w_k g_k,

    which never lowers L. As L is concave and Σ_k w_k g_k = 1, the optimum is at most
    max_k g_k - 1 above it (Cover 1984): EM ends when that is below the tolerance, so that the fit
    is the optimum up to it. Deterministic. Cost: N K per iteration.
    """
    # Only ratios matter, and the largest of each row is 1: nothing underflows to 0 / 0.
    ratios = np.exp(log_probs - log_probs.max(1, keepdims=True))
    weights = np.full(log_probs.shape[1], 1.0 / log_probs.shape[1])
    iterations = 0
    while True:
        gradient = (ratios / (ratios @ weights)[:, None]).mean(0)
        gap = float(gradient.max()) - 1.0
        if gap <= tolerance or iterations == max_iterations:
            break
        weights = weights * gradient
        weights /= weights.sum()
        iterations += 1
    loss = -float(interpolated_log_probs(log_probs, weights).mean())
    return InterpolationFit(
        weights=tuple(float(weight) for weight in weights),
        nats_per_token=loss,
        iterations=iterations,
        gap=max(gap, 0.0),
    )
