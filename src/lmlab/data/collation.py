"""Collation: pad rows of token ids into batches, grouped by length under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of

TOKENS_PER_BATCH = 8192
"""Default number of tokens per batch."""


def pad_rows(
    rows: Sequence[Sequence[int]], system: Any, sources: Sequence[Sequence[int]] = ()
) -> Batch:
    """Collate rows into one right-padded batch on the system's device.

    `sources` holds one condition per row, or is empty.
    """
    pad = system.vocabulary.pad
    condition = Batch.collate(sources, pad) if sources else None
    return Batch.collate(rows, pad, condition=condition).to(device_of(system))


def preferred_tokens_per_batch(system: Any) -> int:
    """Token budget for inference; on a CPU the backbone may prefer another than the default."""
    told: int | None = getattr(getattr(system, "backbone", None), "cpu_tokens_at_once", None)
    return told if told is not None and device_of(system).type == "cpu" else TOKENS_PER_BATCH


def group_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Indices of rows grouped by length, each group at most that many positions with padding.

    A row longer than the budget is alone. Longest first, so that out-of-memory errors occur at
    once.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > tokens_per_batch:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
