"""The paired bootstrap against what theory says of means and ratios."""

from __future__ import annotations

import numpy as np
import pytest

from lmlab.scoring import bootstrap
from lmlab.scoring.bootstrap import interval, paired_bootstrap


def test_bootstrap_std_equals_standard_error_of_mean():
    generator = np.random.default_rng(1)
    nats = generator.normal(5.0, 2.0, (400, 1))
    ratios = paired_bootstrap(nats, np.ones((400, 1)), seed=0, resamples=4000)
    # With equal counts the ratio is a mean: its standard error is s / √n; 4,000 resamples know a
    # standard deviation to about 1.1 %, so 5 % is more than four times that.
    assert ratios.std() == pytest.approx(nats.std() / 20, rel=0.05)
    assert ratios.mean() == pytest.approx(nats.mean(), abs=3 * nats.std() / 20 / 60)


def test_pairing_removes_shared_variance():
    generator = np.random.default_rng(2)
    hard = generator.gamma(2.0, 10.0, 300)
    lengths = generator.integers(5, 30, 300).astype(float)
    totals = np.stack([hard, hard + 0.1 * lengths], 1)
    counts = np.stack([lengths, lengths], 1)
    ratios = paired_bootstrap(totals, counts, seed=0, resamples=500)
    result = interval(ratios, -0.1, 0, 1)
    # The second is worse by exactly 0.1 per token in every sentence, however hard that is.
    assert (result.low, result.high) == (pytest.approx(-0.1), pytest.approx(-0.1))
    assert result.p_value == pytest.approx(2 / 501)


def test_no_difference_is_not_significant():
    generator = np.random.default_rng(3)
    totals = generator.normal(20, 3, (500, 2))
    ratios = paired_bootstrap(totals, np.full((500, 2), 10.0), seed=0)
    value = float((totals[:, 0].sum() - totals[:, 1].sum()) / 5000)
    result = interval(ratios, value, 0, 1)
    assert result.low < value < result.high
    # By the normal approximation, from the same 500 differences.
    difference = totals[:, 0] - totals[:, 1]
    deviations = abs(difference.mean()) / (difference.std() / np.sqrt(500))
    expected = float(2 * (np.random.default_rng(0).normal(size=200_000) > deviations).mean())
    assert result.p_value == pytest.approx(expected, abs=0.05)


def test_bootstrap_is_a_ratio_of_totals():
    totals = np.array([[10.0], [1.0]])
    counts = np.array([[100.0], [1.0]])
    ratios = paired_bootstrap(totals, counts, seed=0, resamples=300)
    # Two sentences: both the first, both the second, or one of each; never a mean of ratios 0.55.
    assert set(np.round(ratios[:, 0], 6)) == {0.1, 1.0, round(11 / 101, 6)}


def test_result_depends_on_seed_and_not_on_chunk_size(monkeypatch):
    totals = np.random.default_rng(4).normal(size=(50, 2))
    ones = np.ones((50, 2))
    first = paired_bootstrap(totals, ones, seed=7, resamples=40)
    assert np.array_equal(first, paired_bootstrap(totals, ones, seed=7, resamples=40))
    assert not np.array_equal(first, paired_bootstrap(totals, ones, seed=8, resamples=40))
    monkeypatch.setattr(bootstrap, "CHUNK_NUMBERS", 150)
    # Matrix products of other shapes sum in another order: equal up to rounding.
    again = paired_bootstrap(totals, ones, seed=7, resamples=40)
    assert again == pytest.approx(first, abs=1e-13)


def test_many_sentences_are_resampled_in_blocks(monkeypatch):
    monkeypatch.setattr(bootstrap, "MAX_BLOCKS", 100)
    totals = np.random.default_rng(5).normal(3.0, 1.0, (1000, 1))
    ratios = paired_bootstrap(totals, np.ones((1000, 1)), seed=0, resamples=2000)
    assert ratios.mean() == pytest.approx(totals.mean(), abs=0.01)
    # Blocks of ten independent sentences have the spread of the sentences themselves; a hundred
    # blocks know their own standard deviation to 7 %.
    assert ratios.std() == pytest.approx(totals.std() / np.sqrt(1000), rel=0.25)
