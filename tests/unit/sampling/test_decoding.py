"""Sampling and greedy search on a tabular model with known probabilities."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.sampling import decoding as decode_module
from lmlab.sampling.decoding import greedy_search, sample_sequences


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chi_square_quantile(freedom: int, deviations: float) -> float:
    """Wilson and Hilferty's approximation: χ² ≈ k (1 - 2/(9k) + z √(2/(9k)))³."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + deviations * math.sqrt(spread)) ** 3


# The normal deviate exceeded with probability 1e-6.
ONE_IN_A_MILLION = 4.7534


def test_sample_frequencies_match_probabilities(random_table):
    samples = sample_sequences(random_table, 20_000, max_length=4, generator=generator(1))
    counts = Counter(sample.tokens for sample in samples)
    probabilities = {
        tokens[:-1]: mass for tokens, mass in random_table.mass.items() if tokens[-1:] == (3,)
    }
    assert sum(probabilities.values()) == pytest.approx(1)
    statistic = 0.0
    rare_expected, rare_seen, cells = 0.0, 0, 0
    for tokens, probability in probabilities.items():
        expected = probability * len(samples)
        if expected < 10:  # rare ones together, as the test asks for enough in each cell
            rare_expected, rare_seen = rare_expected + expected, rare_seen + counts[tokens]
            continue
        cells += 1
        statistic += (counts[tokens] - expected) ** 2 / expected
    statistic += (rare_seen - rare_expected) ** 2 / rare_expected
    assert cells > 15
    assert statistic < chi_square_quantile(cells, ONE_IN_A_MILLION)


def test_sample_log_prob_is_the_models_own(random_table):
    options = {"temperature": 0.7, "top_k": 3, "top_p": 0.9}
    for sample in sample_sequences(
        random_table, 50, max_length=4, generator=generator(), **options
    ):
        assert sample.finished
        expected = math.log(random_table.mass[(*sample.tokens, 3)])
        assert sample.log_prob == pytest.approx(expected, abs=1e-9)


def test_unfinished_samples_are_marked_and_scored(random_table):
    samples = sample_sequences(random_table, 200, max_length=2, generator=generator())
    assert {sample.finished for sample in samples} == {True, False}
    for sample in samples:
        tokens = (*sample.tokens, 3) if sample.finished else sample.tokens
        assert sample.log_prob == pytest.approx(math.log(random_table.mass[tokens]), abs=1e-9)
        assert len(tokens) <= 2


def test_one_seed_gives_one_result(random_table):
    first = sample_sequences(random_table, 30, max_length=4, generator=generator(5))
    assert first == sample_sequences(random_table, 30, max_length=4, generator=generator(5))
    assert first != sample_sequences(random_table, 30, max_length=4, generator=generator(6))


def test_finished_rows_leave_the_batch(random_table):
    samples = sample_sequences(random_table, 40, max_length=4, generator=generator())
    # A row is stepped once for every token it samples, its end included, and then no more.
    assert random_table.rows_stepped == sum(len(sample.tokens) + 1 for sample in samples)


def test_greedy_search_misses_the_likeliest_sequence(greedy_trap):
    system, tokens = greedy_trap
    prefix = [tokens.index(character) for character in "我爱"]
    (hypothesis,) = greedy_search(system, max_length=10, prefix=prefix)
    # 大 has 0.1 + 0.08 + 0.12 + 0.05 + 0.05 + 0.08 + 0.07 = 0.55 against 0.45 for 苹, and of the
    # words that begin with it 大妈 is the most probable, 0.12.
    assert "".join(tokens[token] for token in hypothesis.tokens) == "我爱大妈"
    assert hypothesis.log_prob == pytest.approx(math.log(0.12), abs=1e-12)
    assert hypothesis.finished and hypothesis.given == 2


def test_prefix_is_kept_and_not_scored(random_table):
    for sample in sample_sequences(
        random_table, 20, max_length=3, prefix=[6], generator=generator()
    ):
        assert sample.tokens[0] == 6
        expected = math.log(random_table.mass[(*sample.tokens, 3)] / random_table.mass[(6,)])
        assert sample.log_prob == pytest.approx(expected, abs=1e-9)


def test_many_rows_are_sampled_in_chunks(random_table, monkeypatch):
    monkeypatch.setattr(decode_module, "MAX_NUMBERS", 8 * 5)
    samples = sample_sequences(random_table, 12, max_length=1, generator=generator())
    assert len(samples) == 12
    assert random_table.steps == 3  # five rows, five rows, two


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top-k"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_p": 1.5}, "top-p"),
        ({"max_length": 0}, "length"),
        ({"rows": 0}, "number of sequences must be 1 or more"),
        ({"prefix": [8]}, "from 0 to 7"),
        ({"prefix": [0]}, "can't hold"),
        ({"prefix": [2]}, "can't hold"),
    ],
)
def test_values_out_of_range_are_errors(random_table, options, word):
    settings = {"rows": 1, "max_length": 4} | options
    with pytest.raises(UserError, match=word):
        sample_sequences(random_table, **settings)


class WholeOnly(System):
    """A system that samples complete sequences and can't step."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary

    def sample(self, rows, *, max_length, condition=None, generator=None):
        return [[5, 6, 3] if row % 2 == 0 else [5] * max_length for row in range(rows)]


def test_whole_sequence_systems_allow_ancestral_sampling_only(random_table):
    system = WholeOnly(random_table.vocabulary)
    first, second = sample_sequences(system, 2, max_length=4)
    assert (first.tokens, first.finished, first.log_prob) == ((5, 6), True, None)
    assert (second.tokens, second.finished) == ((5, 5, 5, 5), False)
    with pytest.raises(UserError, match="whole sequences"):
        sample_sequences(system, 1, max_length=4, temperature=0.5)
    with pytest.raises(UserError, match="Step"):
        greedy_search(system, max_length=4)
