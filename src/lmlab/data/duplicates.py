"""Duplicate counting in bounded memory, by distinct sampling."""

from __future__ import annotations

import hashlib

from lmlab.data.readers import Example

HASH_SPACE = 2**64


class DuplicateCounter:
    """Counts examples that repeat an earlier one; exact up to `capacity` distinct texts.

    Beyond that it keeps a uniform sample of the distinct texts, those whose hash is below a falling
    threshold (Gibbons 2001, "Distinct sampling for highly-accurate answers to distinct values
    queries"), and scales the counts by the sampling rate.
    """

    def __init__(self, capacity: int = 2**20) -> None:
        self.capacity = capacity
        self._threshold = HASH_SPACE
        self._counts: dict[int, int] = {}

    @property
    def exact(self) -> bool:
        """Whether every text was kept, so that the counts are exact."""
        return self._threshold == HASH_SPACE

    @property
    def duplicates(self) -> int:
        """Examples that repeat an earlier one of the same split."""
        repeats = sum(self._counts.values()) - len(self._counts)
        return round(repeats * HASH_SPACE / self._threshold)

    def add(self, example: Example) -> None:
        """Count one example; a pair is a duplicate only if both sides are."""
        key = _hash(example)
        if key >= self._threshold:
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        while len(self._counts) > self.capacity:
            self._threshold //= 2
            self._counts = {k: n for k, n in self._counts.items() if k < self._threshold}

    def seen_in(self, other: DuplicateCounter) -> int:
        """Examples of this split whose text occurs in the other split."""
        threshold = min(self._threshold, other._threshold)
        seen = sum(
            count for key, count in self._counts.items() if key < threshold and key in other._counts
        )
        return round(seen * HASH_SPACE / threshold)


def _hash(example: Example) -> int:
    # Length prefix, so that no two different pairs hash the same bytes.
    condition = example.condition or ""
    data = f"{len(condition)}:{condition}{example.text}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
