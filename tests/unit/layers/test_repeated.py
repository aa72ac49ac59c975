"""Inputs that are the same are found, and what is made of them is put back."""

from __future__ import annotations

import torch

from lmlab.layers.position_subset import UniqueInputs


def test_different_inputs_once_and_back():
    inputs = torch.tensor([[5, 6, 7, 6], [5, 4, 7, 6], [5, 6, 7, 6]])
    positions, segments = torch.arange(4)[None], torch.tensor([[0, 0, 1, 1]] * 3)
    for told in (None, segments):
        same = UniqueInputs.from_inputs(inputs, positions, told)
        # 6 at place 1 and at place 3 are two; the mask 4 is the fifth.
        assert same.inputs.shape == (1, 5)
        assert torch.equal(same.expand(same.inputs[..., None])[..., 0], inputs)
        assert torch.equal(
            same.expand(same.positions[..., None])[..., 0], positions.expand_as(inputs)
        )
        if told is None:
            assert same.segments is None
        else:
            assert torch.equal(same.expand(same.segments[..., None])[..., 0], segments)


def test_nothing_is_gained_where_inputs_differ():
    inputs = torch.arange(12).view(3, 4)
    assert UniqueInputs.from_inputs(inputs, torch.arange(4)[None], None) is None
    assert UniqueInputs.from_inputs(torch.zeros(3, 4, 2), torch.arange(4)[None], None) is None
    assert UniqueInputs.from_inputs(inputs[:0], torch.arange(4)[None], None) is None
