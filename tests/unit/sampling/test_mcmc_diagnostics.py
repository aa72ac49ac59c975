"""MCMC diagnostics: R-hat, effective sample size and autocorrelation of known processes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lmlab.sampling.mcmc.diagnostics import (
    autocorrelation,
    effective_sample_size,
    r_hat,
    split_r_hat,
)


def autoregressive(chains: int, length: int, memory: float, seed: int = 0) -> np.ndarray:
    """x_t = memory x_{t-1} + noise, started stationary; autocorrelation memory^lag."""
    noise = np.random.default_rng(seed).normal(size=(chains, length))
    series = np.zeros((chains, length))
    series[:, 0] = noise[:, 0] / math.sqrt(1 - memory**2)
    for step in range(1, length):
        series[:, step] = memory * series[:, step - 1] + noise[:, step]
    return series


def test_split_r_hat_by_hand():
    """Halves (0, 2), (1, 3), (4, 6), (5, 7): each has the variance 2, so W = 2; means 1, 2, 5, 6
    have the variance 17/3, so B = 2 · 17/3; V = W/2 + B/2 = 1 + 17/3; √(V/W) = √(10/3)."""
    readings = np.array([[0.0, 2.0, 1.0, 3.0], [4.0, 6.0, 5.0, 7.0]])
    assert split_r_hat(readings) == pytest.approx(math.sqrt(10 / 3))


def test_split_r_hat_drops_an_odd_middle_value():
    readings = np.array([[0.0, 2.0, 99.0, 1.0, 3.0], [4.0, 6.0, -99.0, 5.0, 7.0]])
    assert split_r_hat(readings) == pytest.approx(math.sqrt(10 / 3))


def test_r_hat_separates_equal_and_different_distributions():
    same = autoregressive(4, 1000, 0.3)
    assert r_hat(same) < 1.01
    apart = same + np.array([[0.0], [0.0], [0.0], [2.0]])
    assert r_hat(apart) > 1.1
    # Equal medians, different spreads: only the folded R-hat detects it.
    wide = same * np.array([[1.0], [1.0], [1.0], [4.0]])
    assert r_hat(wide) > 1.1
    assert split_r_hat(wide) < 1.05


def test_r_hat_detects_drift_in_a_single_chain():
    drifting = np.linspace(0, 3, 400)[None] + autoregressive(1, 400, 0.0)
    assert r_hat(drifting) > 1.1


def test_constant_different_chains_have_infinite_r_hat():
    still = np.repeat([[1.0], [2.0]], 10, axis=1)
    assert split_r_hat(still) == math.inf
    assert math.isnan(r_hat(np.ones((2, 10))))
    assert math.isnan(r_hat(np.zeros((2, 3))))


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_ar1_process(memory):
    """Σ over all lags of memory^|lag| is (1 + memory) / (1 - memory)."""
    readings = autoregressive(4, 5000, memory)
    expected = readings.size * (1 - memory) / (1 + memory)
    assert effective_sample_size(readings) == pytest.approx(expected, rel=0.15)


def test_effective_sample_size_of_diverged_or_constant_chains():
    apart = autoregressive(4, 500, 0.0) + 10 * np.arange(4.0)[:, None]
    assert effective_sample_size(apart) < 10
    assert math.isnan(effective_sample_size(np.ones((3, 50))))


def test_autocorrelation_by_hand_and_of_an_ar1_process():
    """1, -1, 1, -1: products over 4 at lags 0, 1, 2 are 1, -3/4, 2/4."""
    assert autocorrelation(np.array([[1.0, -1.0, 1.0, -1.0]]), 2) == pytest.approx([1, -0.75, 0.5])
    estimate = autocorrelation(autoregressive(8, 5000, 0.8), 5)
    assert estimate == pytest.approx([0.8**lag for lag in range(6)], abs=0.03)
    assert autocorrelation(np.ones((2, 9)), 3) == []


def test_diagnostics_equal_arviz():
    """The reference implementation of Vehtari et al. 2021, where it is installed."""
    arviz = pytest.importorskip("arviz_stats.base", reason="arviz-stats is not installed")
    axes = {"chain_axis": 0, "draw_axis": 1}
    readings = autoregressive(4, 301, 0.7) + np.array([[0.0], [0.1], [0.2], [0.3]])
    expected = float(arviz.array_stats.rhat(readings, **axes))
    assert r_hat(readings) == pytest.approx(expected, rel=1e-3)
    expected = float(arviz.array_stats.ess(readings, method="mean", **axes))
    assert effective_sample_size(readings) == pytest.approx(expected, rel=2e-2)
