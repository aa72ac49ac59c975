"""KV caches for incremental decoding: self-attention, and cross-attention to shared sources."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

SPARE_POSITIONS = 16
"""Spare positions allocated in fresh storage."""


class _Storage:
    """Buffer for keys and values, (B, H, capacity, D) each; the first `filled` are used."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        self.keys, self.values, self.filled = keys, values, filled


@dataclass(frozen=True, eq=False)
class KVCache:
    """Immutable KV cache: keys and values (B, H, length, D); `append` returns a new one.

    The new one writes into the same storage after the last used position, so a step costs one
    position, not a copy of all. Appending to an older cache whose next position is already used
    copies the storage.
    """

    storage: _Storage
    length: int

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> KVCache:
        """A cache of these keys and values, (B, H, T, D)."""
        return cls(_Storage(keys, values, keys.shape[2]), keys.shape[2])

    @classmethod
    def empty(cls, rows: int, heads: int, width: int, like: Tensor) -> KVCache:
        """An empty cache."""
        empty = like.new_empty(rows, heads, 0, width)
        return cls.of(empty, empty)

    @property
    def keys(self) -> Tensor:
        return self.storage.keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        return self.storage.values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> KVCache:
        """The cache extended by the new positions, (B, H, new, D)."""
        if torch.is_grad_enabled() and (keys.requires_grad or self.keys.requires_grad):
            return KVCache.of(torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2))
        new = self.length + keys.shape[2]
        storage = self.storage
        if storage.filled != self.length or new > storage.keys.shape[2]:
            storage = self._grown(max(2 * self.length, new + SPARE_POSITIONS))
        storage.keys[:, :, self.length : new] = keys
        storage.values[:, :, self.length : new] = values
        storage.filled = new
        return KVCache(storage, new)

    def select(self, rows: Tensor) -> KVCache:
        """The given rows; free of cost for the same rows in the same order."""
        count = self.storage.keys.shape[0]
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return self
        # With the spare capacity: whole rows are copied faster than their filled part.
        stored = (self.storage.keys, self.storage.values)
        keys, values = (tensor.index_select(0, rows) for tensor in stored)
        return KVCache(_Storage(keys, values, self.length), self.length)

    def drop_oldest(self, count: int) -> KVCache:
        """Without the first `count` positions."""
        return KVCache.of(self.keys[:, :, count:], self.values[:, :, count:])

    def detach(self) -> KVCache:
        return KVCache.of(self.keys.detach(), self.values.detach())

    def _grown(self, capacity: int) -> _Storage:
        return _Storage(
            _with_capacity(self.keys, capacity), _with_capacity(self.values, capacity), self.length
        )


class SourceAssignment:
    """Which source each text of a batch is decoded from, shared by all decoder layers."""

    def __init__(self, sources: Tensor, slots: Tensor, first_texts: Tensor, texts: int) -> None:
        self.sources = sources
        """(B,) the source of each text, counted from 0."""
        self.slots = slots
        """(B,) the index of each text among its source's texts, 0, 1, 2 …"""
        self.first_texts = first_texts
        """(S,) one text of each source."""
        self.texts = texts
        """The maximum number of texts of one source."""
        self._chosen: tuple[Tensor, tuple[Tensor | None, SourceAssignment]] | None = None

    @classmethod
    def one_to_one(cls, rows: int, device: torch.device | None = None) -> SourceAssignment:
        """One text per source."""
        index = torch.arange(rows, device=device)
        return cls(index, torch.zeros_like(index), index, 1)

    def select(self, rows: Tensor) -> tuple[Tensor | None, SourceAssignment]:
        """Sources (S',) that the given texts use, None for all; and the new assignment.

        The result is cached for the same tensor, as given by the next layer.
        """
        if self._chosen is None or self._chosen[0] is not rows:
            self._chosen = rows, self._selected(rows)
        return self._chosen[1]

    def _selected(self, rows: Tensor) -> tuple[Tensor | None, SourceAssignment]:
        chosen = self.sources[rows]
        if torch.equal(chosen, self.sources):
            return None, self
        used, sources, counts = chosen.unique(return_inverse=True, return_counts=True)
        order = sources.argsort(stable=True)
        first_indices = counts.cumsum(0) - counts
        slots = torch.empty_like(sources)
        slots[order] = torch.arange(len(rows), device=rows.device) - first_indices[sources[order]]
        assignment = SourceAssignment(
            sources, slots, order[first_indices], int(counts.max()) if len(rows) else 0
        )
        return used if len(used) < len(self.first_texts) else None, assignment


@dataclass(frozen=True, eq=False)
class CrossAttentionCache:
    """Cross-attention cache: keys and values (S, H, T, D) of sources, and their texts.

    Texts of one source, as in a beam, share them: forking or reordering texts costs nothing, and
    their queries are batched as those of one row.
    """

    keys: Tensor
    values: Tensor
    assignment: SourceAssignment

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, assignment: SourceAssignment) -> CrossAttentionCache:
        """A cache of sources (S, H, T, D), made contiguous once for all steps."""
        return cls(keys.contiguous(), values.contiguous(), assignment)

    def select(self, rows: Tensor) -> CrossAttentionCache:
        """The cache for the given texts; sources without texts are dropped."""
        used, assignment = self.assignment.select(rows)
        if used is None:
            return replace(self, assignment=assignment)
        return CrossAttentionCache(self.keys[used], self.values[used], assignment)

    def expand_to_texts(self) -> tuple[Tensor, Tensor]:
        """(B, H, T, D) keys and values of each text's source."""
        return self.keys[self.assignment.sources], self.values[self.assignment.sources]

    def group_queries(self, queries: Tensor) -> Tensor:
        """(S, H, texts · new, D) queries (B, H, new, D), grouped by source."""
        _, heads, new, width = queries.shape
        gathered = queries.new_zeros(len(self.keys), self.assignment.texts, heads, new, width)
        gathered[self.assignment.sources, self.assignment.slots] = queries
        return gathered.transpose(1, 2).flatten(2, 3)

    def ungroup(self, outputs: Tensor, new: int) -> Tensor:
        """(B, new, W) grouped outputs (S, texts · new, W), by text again."""
        return outputs.unflatten(1, (-1, new))[self.assignment.sources, self.assignment.slots]

    def detach(self) -> CrossAttentionCache:
        return replace(self, keys=self.keys.detach(), values=self.values.detach())


def _with_capacity(cached: Tensor, capacity: int) -> Tensor:
    """(B, H, T, D) copied to the front of (B, H, capacity, D)."""
    buffer = cached.new_empty(*cached.shape[:2], capacity, cached.shape[3])
    buffer[:, :, : cached.shape[2]] = cached
    return buffer
