"""UniqueInputs: repeated inputs are deduplicated and expanded again."""

from __future__ import annotations

import torch

from lmlab.layers.position_subset import UniqueInputs


def test_unique_inputs_expand_to_the_originals():
    inputs = torch.tensor([[5, 6, 7, 6], [5, 4, 7, 6], [5, 6, 7, 6]])
    positions, segments = torch.arange(4)[None], torch.tensor([[0, 0, 1, 1]] * 3)
    for given_segments in (None, segments):
        unique = UniqueInputs.from_inputs(inputs, positions, given_segments)
        # 6 at positions 1 and 3 counts twice; the mask 4 is the fifth.
        assert unique.inputs.shape == (1, 5)
        assert torch.equal(unique.expand(unique.inputs[..., None])[..., 0], inputs)
        assert torch.equal(
            unique.expand(unique.positions[..., None])[..., 0], positions.expand_as(inputs)
        )
        if given_segments is None:
            assert unique.segments is None
        else:
            assert torch.equal(unique.expand(unique.segments[..., None])[..., 0], segments)


def test_no_unique_inputs_where_all_differ():
    inputs = torch.arange(12).view(3, 4)
    assert UniqueInputs.from_inputs(inputs, torch.arange(4)[None], None) is None
    assert UniqueInputs.from_inputs(torch.zeros(3, 4, 2), torch.arange(4)[None], None) is None
    assert UniqueInputs.from_inputs(inputs[:0], torch.arange(4)[None], None) is None
