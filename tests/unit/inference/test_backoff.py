"""KeyIndex lookups equal those of a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from lmlab.inference.backoff import KeyIndex


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 5000])
def test_key_index_equals_a_dictionary(count):
    generator = np.random.default_rng(count)
    keys = np.unique(generator.integers(0, 10 * count + 1, size=count))
    expected = {int(key): index for index, key in enumerate(keys)}
    queries = generator.integers(0, 10 * count + 5, size=2000)
    result = KeyIndex(keys).find(queries)
    assert result.tolist() == [expected.get(int(key), -1) for key in queries]


def test_key_index_with_adjacent_and_huge_keys():
    keys = np.concatenate([np.arange(1000), 2**62 + np.arange(1000)])
    assert KeyIndex(keys).find(keys).tolist() == list(range(2000))
    assert KeyIndex(keys).find(keys + 1000).tolist() == [-1] * 2000


def test_empty_slots_of_the_key_index_match_nothing():
    """They hold -1, which would index the first key: it must not match by accident."""
    index = KeyIndex(np.array([3, 5, 8]))
    assert index.find(np.array([3, 4, 3, 9, 8])).tolist() == [0, -1, 0, -1, 2]
