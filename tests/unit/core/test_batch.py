"""Batches: padding, target masks, row selection and conditions."""

from __future__ import annotations

import numpy as np
import torch

from lmlab.core.batch import Batch


def example_batch() -> Batch:
    condition = Batch.collate([[2, 9], [2, 8, 8], [2]], pad=0)
    sequences = [[2, 5, 6, 3], np.array([2, 7, 3], dtype=np.uint16), [2]]
    return Batch.collate(sequences, 0, rows=[10, 20, 30], condition=condition)


def test_sequences_are_padded_at_the_end() -> None:
    batch = example_batch()
    assert batch.tokens.tolist() == [[2, 5, 6, 3], [2, 7, 3, 0], [2, 0, 0, 0]]
    assert batch.tokens.dtype == torch.int64
    assert batch.lengths.tolist() == [4, 3, 1]
    assert batch.rows.tolist() == [10, 20, 30]
    assert len(batch) == 3
    assert not batch.continues_previous


def test_first_position_and_padding_are_not_targets() -> None:
    batch = example_batch()
    assert batch.targets_mask().int().tolist() == [[0, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert batch.mask().sum(dim=1).tolist() == batch.lengths.tolist()
    assert batch.count == int(batch.targets_mask().sum()) == 5


def test_selected_rows_keep_their_condition() -> None:
    chosen = example_batch().select(torch.tensor([1, 1, 0]))
    assert chosen.rows.tolist() == [20, 20, 10]
    assert chosen.tokens[:, 1].tolist() == [7, 7, 5]
    assert chosen.condition is not None
    assert chosen.condition.tokens.tolist() == [[2, 8, 8], [2, 8, 8], [2, 9, 0]]


def test_moving_to_a_device_keeps_all_fields() -> None:
    batch = example_batch()
    moved = batch.to("cpu")
    assert moved.tokens.equal(batch.tokens)
    assert moved.condition is not None


def test_collating_no_sequences_gives_an_empty_batch() -> None:
    batch = Batch.collate([], pad=0)
    assert (len(batch), batch.count, tuple(batch.tokens.shape)) == (0, 0, (0, 0))


def test_collate_copies_the_row_numbers() -> None:
    rows = np.array([1])
    batch = Batch.collate([[2, 3]], 0, rows=rows)
    rows[0] = 7
    assert batch.rows.tolist() == [1]
