"""A key index finds what a dictionary finds."""

from __future__ import annotations

import numpy as np
import pytest

from lmlab.inference.backoff import KeyIndex


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 5000])
def test_finds_what_a_dictionary_finds(count):
    generator = np.random.default_rng(count)
    keys = np.unique(generator.integers(0, 10 * count + 1, size=count))
    expected = {int(key): place for place, key in enumerate(keys)}
    wanted = generator.integers(0, 10 * count + 5, size=2000)
    found = KeyIndex(keys).find(wanted)
    assert found.tolist() == [expected.get(int(key), -1) for key in wanted]


def test_neighbouring_and_huge_keys_do_not_get_lost():
    keys = np.concatenate([np.arange(1000), 2**62 + np.arange(1000)])
    assert KeyIndex(keys).find(keys).tolist() == list(range(2000))
    assert KeyIndex(keys).find(keys + 1000).tolist() == [-1] * 2000


def test_empty_slots_match_nothing():
    """They hold -1, which is read as the first key: it must not be found by accident, nor lost."""
    index = KeyIndex(np.array([3, 5, 8]))
    assert index.find(np.array([3, 4, 3, 9, 8])).tolist() == [0, -1, 0, -1, 2]
