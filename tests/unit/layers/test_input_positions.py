"""Positions in input vectors, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.layers.positions import (
    ConcatenatedPositions,
    LearnedPositions,
    PairPositions,
    SinusoidalPositions,
)


def test_sinusoidal_by_hand():
    """Width 4: frequencies 1 and 10000^(-1/2) = 0.01; sines first, then cosines."""
    zeros, places = torch.zeros(1, 3, 4), torch.arange(3)[None]
    found = SinusoidalPositions(4)(zeros, places)[0, 2]
    expected = [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_an_odd_width_has_one_sine_more():
    waves = SinusoidalPositions(5).waves(torch.tensor([[1]]))
    assert waves.shape == (1, 1, 5)


def test_concatenated_stand_beside_the_vectors():
    vectors = torch.randn(2, 3, 4)
    found = ConcatenatedPositions(4)(vectors, torch.arange(3)[None])
    assert found.shape == (2, 3, 8)
    assert torch.equal(found[..., :4], vectors)


def test_learned_and_pairs_add_what_stands_in_their_tables():
    vectors, places = torch.randn(2, 3, 4), torch.tensor([[2, 0, 1], [1, 1, 0]])
    learned = LearnedPositions(5, 4)
    assert torch.equal(learned(vectors, places), vectors + learned.table.weight[places])
    pairs = PairPositions(5, 4)
    both = torch.stack([places, places.flip(1)], -1)
    expected = vectors + pairs.first.table.weight[places]
    expected = expected + pairs.second.table.weight[places.flip(1)]
    assert torch.equal(pairs(vectors, both), expected)
