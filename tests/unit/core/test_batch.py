"""Batches: what is predicted, what is counted, and rows that stay together."""

from __future__ import annotations

import numpy as np
import torch

from lmlab.core.batch import Batch


def make() -> Batch:
    condition = Batch.collate([[2, 9], [2, 8, 8], [2]], pad=0)
    sequences = [[2, 5, 6, 3], np.array([2, 7, 3], dtype=np.uint16), [2]]
    return Batch.collate(sequences, 0, rows=[10, 20, 30], condition=condition)


def test_sequences_are_padded_at_the_end() -> None:
    batch = make()
    assert batch.tokens.tolist() == [[2, 5, 6, 3], [2, 7, 3, 0], [2, 0, 0, 0]]
    assert batch.tokens.dtype == torch.int64
    assert batch.lengths.tolist() == [4, 3, 1]
    assert batch.rows.tolist() == [10, 20, 30]
    assert len(batch) == 3
    assert not batch.continues_previous


def test_the_first_place_is_context_and_padding_never_counts() -> None:
    batch = make()
    assert batch.targets_mask().int().tolist() == [[0, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert batch.mask().sum(dim=1).tolist() == batch.lengths.tolist()
    assert batch.count == int(batch.targets_mask().sum()) == 5


def test_selected_rows_bring_their_condition() -> None:
    chosen = make().select(torch.tensor([1, 1, 0]))
    assert chosen.rows.tolist() == [20, 20, 10]
    assert chosen.tokens[:, 1].tolist() == [7, 7, 5]
    assert chosen.condition is not None
    assert chosen.condition.tokens.tolist() == [[2, 8, 8], [2, 8, 8], [2, 9, 0]]


def test_moving_keeps_everything() -> None:
    batch = make()
    moved = batch.to("cpu")
    assert moved.tokens.equal(batch.tokens)
    assert moved.condition is not None


def test_no_sequences_make_an_empty_batch() -> None:
    batch = Batch.collate([], pad=0)
    assert (len(batch), batch.count, tuple(batch.tokens.shape)) == (0, 0, (0, 0))


def test_the_callers_rows_are_not_shared() -> None:
    rows = np.array([1])
    batch = Batch.collate([[2, 3]], 0, rows=rows)
    rows[0] = 7
    assert batch.rows.tolist() == [1]
