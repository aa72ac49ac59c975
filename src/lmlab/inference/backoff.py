"""Backoff n-gram model (ARPA form): trie in flat arrays, hash index, vectorised lookup.

    p(w | u) = P(uw)            if the n-gram uw is in the tables
             = B(u) p(w | u')   otherwise; u' is u less its oldest word, and B(u) is 1 for unknown u

An interpolated model is of this form too, with the interpolated probability as P (Chen and Goodman
1998, section 2.8), and so is every ARPA file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: multiplying by it spreads neighbouring keys over the slots."""


class KeyIndex:
    """Hash table from keys to their indices, with open addressing and linear probing.

    Multiplicative hashing as in Knuth, The Art of Computer Programming 3, section 6.4. Vectorised
    over the queries: the first probe answers most of them, and each further probe handles only the
    rest. About 20 ns per key, where binary search needs 300.

    keys: int64 (M,), distinct and non-negative. Memory: 8 to 16 bytes per key besides the keys.
    """

    def __init__(self, keys: np.ndarray) -> None:
        assert len(keys) < 2**31, "indices are stored as int32"
        self.keys = keys
        bits = max(1, (2 * len(keys)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._indices = np.full(1 << bits, -1, dtype=np.int32)
        self._insert()

    def _insert(self) -> None:
        """Put every key into the first free slot from its own on."""
        pending = np.arange(len(self.keys), dtype=np.int32)
        slots = self._slots(self.keys)
        while len(pending):
            free = np.flatnonzero(self._indices[slots] < 0)
            self._indices[slots[free]] = pending[free]
            displaced = np.flatnonzero(self._indices[slots] != pending)
            pending = pending[displaced]
            slots = (slots[displaced] + 1) & self._mask

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        hashed = keys.view(np.uint64) * GOLDEN
        hashed >>= self._shift
        return hashed.view(np.int64)

    def find(self, queries: np.ndarray) -> np.ndarray:
        """The index of each wanted key, -1 if absent: int64 (N,) to (N,)."""
        slots = self._slots(queries)
        indices = self._indices.take(slots)
        if not len(self.keys):
            return indices.astype(np.int64)
        unresolved = np.flatnonzero(self._key_at(indices) != queries)
        while len(unresolved):
            unresolved = unresolved[indices[unresolved] >= 0]
            slots[unresolved] = probed = (slots[unresolved] + 1) & self._mask
            indices[unresolved] = candidates = self._indices.take(probed)
            unresolved = unresolved[self._key_at(candidates) != queries[unresolved]]
        return indices.astype(np.int64)

    def _key_at(self, indices: np.ndarray) -> np.ndarray:
        # The -1 of an empty slot reads the first key. That is harmless: were it the one wanted, its
        # own slot would have come before any empty one.
        return self.keys.take(indices, mode="clip")


MOST_ORDER = 100
"""Maximum order; orders are stored as int8."""
TEXT_BREAK = -1
"""Separates texts in a token stream: no context before it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BackoffTables:
    """All n-grams of a model as nodes of one trie, numbered level by level.

    Nodes 0 … V - 1 are the unigrams, node V + j is the n-gram `keys[j]`: the node of its first n -
    1 words, times V, plus its last word. Keys are sorted, so that the nodes of a level follow those
    of the shorter levels, and the n-grams with the same context are adjacent.
    """

    vocabulary: Vocabulary
    """V is its size."""
    level_ends: np.ndarray
    """int64 (order,): the nodes of n-grams of n words end before level_ends[n - 1]."""
    keys: np.ndarray
    """int64 (M,), ascending."""
    log_probs: np.ndarray
    """float (V + M,): natural log of P; -inf for tokens that are never predicted."""
    log_backoffs: np.ndarray
    """float (level_ends[-2],), or (0,) for order 1: natural log of B; 0 if nothing follows."""

    def __post_init__(self) -> None:
        ends = self.level_ends
        nodes = self.vocabulary.size + len(self.keys)
        if (
            len(ends) < 1
            or ends[0] != self.vocabulary.size
            or ends[-1] != nodes
            or np.any(np.diff(ends) < 0)
            or len(self.log_probs) != nodes
            or len(self.log_backoffs) != (ends[-2] if len(ends) > 1 else 0)
        ):
            raise UserError(
                f"these n-gram tables do not belong together: {nodes} n-grams over a vocabulary "
                f"of {self.vocabulary.size}, levels that end at {ends.tolist()}, "
                f"{len(self.log_probs)} probabilities and {len(self.log_backoffs)} backoffs; fit "
                "the model again."
            )

    @property
    def order(self) -> int:
        """Words in the longest n-gram."""
        return len(self.level_ends)

    def level(self, words: int) -> slice:
        """The nodes of the n-grams of so many words."""
        start = 0 if words == 1 else int(self.level_ends[words - 2])
        return slice(start, int(self.level_ends[words - 1]))

    def keys_of(self, words: int) -> np.ndarray:
        """The keys of the n-grams of so many words, at least two."""
        size, level = self.vocabulary.size, self.level(words)
        return self.keys[level.start - size : level.stop - size]

    def grams(self, words: int) -> np.ndarray:
        """The n-grams of so many words as ids, (count, words), in the order of their nodes."""
        size = self.vocabulary.size
        level = self.level(words)
        nodes = np.arange(level.start, level.stop)
        columns: list[np.ndarray] = []
        for _ in range(words - 1):
            nodes, last = np.divmod(self.keys[nodes - size], size)
            columns.append(last)
        return np.stack([*columns, nodes][::-1], axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class BackoffLookup:
    """Looked-up log-probabilities of N tokens."""

    log_probs: np.ndarray
    """(N,) natural log-probabilities."""
    orders: np.ndarray
    """int8 (N,): order of the longest matching n-gram, 1 for the token alone."""


class BackoffModel:
    """Backoff n-gram model: tables with a key index, for vectorised lookup.

    A token costs at most order - 1 lookups, because the n-grams that end at one token are the
    contexts of the next, and fewer for unseen ones. Internally padding replaces TEXT_BREAK: no
    n-gram contains it, so no lookup across it succeeds.
    """

    def __init__(self, tables: BackoffTables) -> None:
        self.tables = tables
        self._index = KeyIndex(tables.keys)

    def read(self, stream: np.ndarray) -> BackoffLookup:
        """Every token of a stream given the tokens before it; TEXT_BREAK separates texts.

        stream: int64 (S,). The probability of a TEXT_BREAK is that of padding, zero.
        """
        tables, size = self.tables, self.tables.vocabulary.size
        stream = np.append(self._without_breaks(stream), tables.vocabulary.pad)
        log_probs = tables.log_probs.take(stream)
        orders = np.ones(len(stream), dtype=np.int8)
        # `contexts[i]` is the node of the n - 1 words before the token at `positions[i]`.
        positions, contexts, words = np.arange(1, len(stream)), stream[:-1], stream[1:]
        for order in range(2, tables.order + 1):
            nodes = self._index.find(contexts * size + words)
            hits, misses = np.flatnonzero(nodes >= 0), np.flatnonzero(nodes < 0)
            log_probs[positions[misses]] += tables.log_backoffs.take(contexts[misses])
            positions, contexts = positions[hits], nodes[hits] + size
            log_probs[positions] = tables.log_probs.take(contexts)
            orders[positions] = order
            positions = positions + 1  # never the last, which is padding and so never found
            words = stream.take(positions)
        return BackoffLookup(log_probs=log_probs[:-1], orders=orders[:-1])

    def predict(self, context: np.ndarray, targets: np.ndarray) -> BackoffLookup:
        """Each target given its own context: int64 (N, order - 1), newest last, and (N,)."""
        stream, positions = _join_contexts(context, targets)
        lookup = self.read(stream)
        return BackoffLookup(log_probs=lookup.log_probs[positions], orders=lookup.orders[positions])

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """log p of every token of the vocabulary after N contexts (N, order - 1): (N, V).

        A token seen after the last n words, but after no longer context, has the probability of
        that n-gram times the backoffs of the longer contexts. The unigrams, n = 0, are set
        everywhere, and longer n-grams overwrite shorter ones.
        """
        tables, size = self.tables, self.tables.vocabulary.size
        suffixes = list(self._suffixes(context))
        backoffs = np.zeros((len(suffixes) + 1, len(context)))  # [n]: backoffs of more than n words
        for words, (rows, nodes) in reversed(list(enumerate(suffixes))):
            backoffs[words] = backoffs[words + 1]
            backoffs[words, rows] += tables.log_backoffs[nodes]
        out = tables.log_probs[:size] + backoffs[0, :, None]
        for words, (rows, nodes) in enumerate(suffixes, start=1):
            first, last = np.searchsorted(tables.keys, [nodes * size, (nodes + 1) * size])
            counts = last - first
            # The concatenated children first … last of each node.
            shifts = first - (np.cumsum(counts) - counts)
            children = np.arange(counts.sum()) + np.repeat(shifts, counts)
            rows = np.repeat(rows, counts)
            log_probs = tables.log_probs[size + children] + backoffs[words, rows]
            out[rows, tables.keys[children] % size] = log_probs
        return out

    def _suffixes(self, context: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For the last 1, 2, … order - 1 words: the rows where they are known, and their nodes."""
        width, size = context.shape[1], self.tables.vocabulary.size
        columns = self._without_breaks(context).T
        nodes = list(columns)  # nodes[i]: of the words that end at word i, TEXT_BREAK if unknown
        for words in range(1, width + 1):
            known = np.flatnonzero(nodes[-1] >= 0)
            yield known, nodes[-1][known]
            for end in range(width - 1, words - 1, -1):
                known = np.flatnonzero(nodes[end - 1] >= 0)
                indices = self._index.find(nodes[end - 1][known] * size + columns[end][known])
                nodes[end] = np.full(len(context), TEXT_BREAK)
                nodes[end][known] = np.where(indices < 0, TEXT_BREAK, indices + size)

    def _without_breaks(self, tokens: np.ndarray) -> np.ndarray:
        return np.where(tokens < 0, self.tables.vocabulary.pad, tokens)


def _join_contexts(context: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One stream of every context and target, and the positions of the targets in it.

    Rows that continue the row above (its context and target are their context) share it, so that
    text costs little more than its own length; other rows begin with a TEXT_BREAK.
    """
    rows, width = context.shape
    continues = np.zeros(rows, dtype=bool)
    if width:
        np.equal(context[1:, -1], targets[:-1], out=continues[1:])
        for column in range(width - 1):
            continues[1:] &= context[1:, column] == context[:-1, column + 1]
    starts = np.flatnonzero(~continues)
    positions = np.arange(rows) + (width + 1) * np.cumsum(~continues)
    stream = np.full(rows + (width + 1) * len(starts), TEXT_BREAK)
    stream[positions] = targets
    for column in range(width):
        stream[positions[starts] - width + column] = context[starts, column]
    return stream, positions
