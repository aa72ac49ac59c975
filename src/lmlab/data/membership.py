"""Membership tests (hash sets) for the texts or n-grams of a corpus, a few bytes per entry.

    known = TextSet(tokens, offsets)
    known(batch_tokens, lengths, positions)

A text has a 64-bit Zobrist hash (Zobrist 1970): the sum, modulo 2^64, of one random number per
(position, token). Hashes are stored by quotienting (Cleary 1984, Compact Hash Tables Using
Bidirectional Linear Probing; Bender et al. 2012 for filters): the first bits select the bucket,
and `bits` of the others are stored. There are no false negatives; the false-positive rate is
(entries per bucket) / 2^bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

POSITION_KEY, TOKEN_KEY, MIX_KEY = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
"""The constants of SplitMix64 (Steele et al. 2014)."""
TOKENS_AT_ONCE = 2**20
"""Corpus tokens hashed at once."""
PER_BUCKET = 8
"""Minimum average number of entries per bucket (if there are enough); below twice that."""


class MembershipTest(Protocol):
    """Tests whether edited texts occur in a corpus."""

    def __call__(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """(B,) for texts (B, T) of the given lengths, each edited at one position (B,)."""


class HashSet:
    """Set of 64-bit hashes, stored as sorted remainders of `bits` (16 or 32) in buckets.

    Memory: bits / 8 + 4 / (entries per bucket, 8 to 16) bytes per entry. False-positive rate:
    (entries per bucket) / 2^bits, about 3e-9 with 32 bits, 2e-4 with 16. Query cost: one vectorised
    comparison per entry of the fullest bucket.
    """

    def __init__(self, hashes: Hashes, *, bits: int = 32) -> None:
        assert bits in (16, 32), "remainders are kept as uint16 or uint32"
        unique = sorted_unique(hashes)
        self._low = np.uint64(2**bits - 1)
        self._bucket_bits = max(0, (len(unique) // PER_BUCKET).bit_length() - 1)
        self._shift = np.uint64(64 - self._bucket_bits - bits)
        self._remainders = self._remainder(unique).astype(np.uint16 if bits == 16 else np.uint32)
        sizes = np.bincount(self._bucket(unique), minlength=1 << self._bucket_bits)
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)
        self._fullest = int(sizes.max(initial=0))

    def __len__(self) -> int:
        return len(self._remainders)

    @property
    def bytes(self) -> int:
        """Memory of the set in bytes."""
        return self._remainders.nbytes + self._starts.nbytes

    def contains(self, hashes: Hashes) -> NDArray[np.bool_]:
        """(N,) whether each hash is in the set."""
        present = np.zeros(len(hashes), dtype=bool)
        if not len(self):
            return present
        buckets, remainders = self._bucket(hashes), self._remainder(hashes)
        first, end = self._starts[buckets].astype(np.int64), self._starts[buckets + 1]
        for step in range(self._fullest):
            slot = first + step
            present |= (slot < end) & (self._remainders.take(slot, mode="clip") == remainders)
        return present

    def _bucket(self, hashes: Hashes) -> NDArray[np.int64]:
        if not self._bucket_bits:
            return np.zeros(len(hashes), dtype=np.int64)
        return (hashes >> np.uint64(64 - self._bucket_bits)).astype(np.int64)

    def _remainder(self, hashes: Hashes) -> Hashes:
        return (hashes >> self._shift) & self._low


class TextSet:
    """Membership test for whole texts: is the text, token for token, in the corpus?"""

    def __init__(
        self, tokens: NDArray[np.generic], offsets: NDArray[np.int64], *, bits: int = 32
    ) -> None:
        self.hashes = HashSet(text_hashes(tokens, offsets), bits=bits)

    def __call__(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        index = np.arange(tokens.shape[1])
        hashes = np.where(index < lengths[:, None], position_hashes(tokens, index), np.uint64(0))
        return self.hashes.contains(splitmix64(hashes.sum(1, dtype=np.uint64)))


class NgramSet:
    """Membership test for n-grams: are all n-grams covering the edited position in the corpus?

    False for a text of fewer than n tokens, which has none.
    """

    def __init__(
        self, tokens: NDArray[np.generic], offsets: NDArray[np.int64], size: int, *, bits: int = 32
    ) -> None:
        self.size = size
        parts = [sorted_unique(part) for part in ngram_hashes(tokens, offsets, size)]
        self.hashes = HashSet(np.concatenate([np.zeros(0, np.uint64), *parts]), bits=bits)

    def __call__(
        self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        if tokens.shape[1] < self.size:
            return np.zeros(len(tokens), dtype=bool)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, self.size, axis=1)
        sums = position_hashes(windows, np.arange(self.size)).sum(-1, dtype=np.uint64)
        known = self.hashes.contains(splitmix64(sums).ravel()).reshape(sums.shape)
        first = np.arange(sums.shape[1])
        inside = first + self.size <= lengths[:, None]
        covers = inside & (first <= positions[:, None]) & (positions[:, None] < first + self.size)
        return np.asarray(covers.any(1) & (known | ~covers).all(1))


def text_hashes(tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> Hashes:
    """(N,) hash of each text of flat ids, whose texts start and end at `offsets` (N + 1)."""
    sums = np.zeros(len(offsets) - 1, dtype=np.uint64)
    for first in range(int(offsets[0]), int(offsets[-1]), TOKENS_AT_ONCE):
        flat = np.arange(first, min(first + TOKENS_AT_ONCE, int(offsets[-1])))
        texts = np.searchsorted(offsets, flat, side="right") - 1
        hashes = position_hashes(tokens[first : first + len(flat)], flat - offsets[texts])
        starts = np.flatnonzero(np.diff(texts, prepend=-1))
        sums[texts[starts]] += np.add.reduceat(hashes, starts)
    return splitmix64(sums)


def ngram_hashes(
    tokens: NDArray[np.generic], offsets: NDArray[np.int64], size: int
) -> Iterator[Hashes]:
    """Hashes of all n-grams of `size` tokens within texts, in chunks."""
    last = int(offsets[-1]) - size + 1
    for first in range(int(offsets[0]), last, TOKENS_AT_ONCE):
        starts = np.arange(first, min(first + TOKENS_AT_ONCE, last))
        ends = offsets[np.searchsorted(offsets, starts, side="right")]
        sums = np.zeros(len(starts), dtype=np.uint64)
        for offset in range(size):
            column = tokens[first + offset : first + offset + len(starts)]
            sums += position_hashes(column, np.array([offset]))
        yield splitmix64(sums)[starts + size <= ends]


def position_hashes(tokens: NDArray[np.generic], positions: NDArray[np.int64]) -> Hashes:
    """A random number for each (token, position) pair; shapes broadcast."""
    ids = tokens.astype(np.uint64) + np.uint64(1)
    return splitmix64(
        splitmix64(ids * POSITION_KEY) + (positions.astype(np.uint64) + np.uint64(1)) * POSITION_KEY
    )


def sorted_unique(numbers: Hashes) -> Hashes:
    """Sorted unique values; `np.unique` uses a hash table, at several times the cost."""
    ordered = np.sort(numbers)
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]
    distinct: NDArray[np.uint64] = ordered[is_first]
    return distinct


def splitmix64(numbers: Hashes) -> Hashes:
    """SplitMix64 mixing function; products wrap around."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * TOKEN_KEY
    numbers = (numbers ^ (numbers >> np.uint64(27))) * MIX_KEY
    return numbers ^ (numbers >> np.uint64(31))
