"""Rows of ids as batches, gathered by length to a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of

TOKENS_PER_BATCH = 8192
"""Tokens of a batch, unless somebody knows better."""


def pad_rows(
    rows: Sequence[Sequence[int]], system: Any, sources: Sequence[Sequence[int]] = ()
) -> Batch:
    """The rows as one batch, padded at their ends, where the system's numbers live.

    `sources` are what the rows are given, one each, or none at all.
    """
    pad = system.vocabulary.pad
    condition = Batch.collate(sources, pad) if sources else None
    return Batch.collate(rows, pad, condition=condition).to(device_of(system))


def preferred_tokens_per_batch(system: Any) -> int:
    """Tokens to read at once: as many as pay, which on a CPU the backbone may know better."""
    told: int | None = getattr(getattr(system, "backbone", None), "cpu_tokens_at_once", None)
    return told if told is not None and device_of(system).type == "cpu" else TOKENS_PER_BATCH


def group_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Indices of rows in groups of like length, each of at most that many places, padding counted.

    A row longer than the budget stands alone. Longest first, so that a batch that needs too much
    memory fails at once.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > tokens_per_batch:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
