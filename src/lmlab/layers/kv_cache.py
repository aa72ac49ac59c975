"""Keys and values of the inputs so far: what makes a step of a Transformer cost one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

SPARE_POSITIONS = 16
"""Places that fresh storage has room for beyond those it is made with."""


class _Storage:
    """Room for keys and values, (B, H, capacity, D) each, of which the first `filled` are taken."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        self.keys, self.values, self.filled = keys, values, filled


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values (B, H, length, D); it never changes, what is appended is a new one.

    The new one writes into the same storage behind the last place, where nobody has written yet:
    so a step costs one place, not a copy of all of them. Whoever appends to an older one finds the
    place taken and copies.
    """

    storage: _Storage
    length: int

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> KVCache:
        """These keys and values, (B, H, T, D)."""
        return cls(_Storage(keys, values, keys.shape[2]), keys.shape[2])

    @classmethod
    def empty(cls, rows: int, heads: int, width: int, like: Tensor) -> KVCache:
        """Of no place yet."""
        nothing = like.new_empty(rows, heads, 0, width)
        return cls.of(nothing, nothing)

    @property
    def keys(self) -> Tensor:
        return self.storage.keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        return self.storage.values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> KVCache:
        """These and those of the new places, (B, H, new, D)."""
        if torch.is_grad_enabled() and (keys.requires_grad or self.keys.requires_grad):
            joined = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
            return KVCache.of(*joined)
        new = self.length + keys.shape[2]
        room = self.storage.keys.shape[2]
        mine = self.storage if self.storage.filled == self.length and new <= room else None
        storage = mine or self._roomier(max(2 * self.length, new + SPARE_POSITIONS))
        storage.keys[:, :, self.length : new] = keys
        storage.values[:, :, self.length : new] = values
        storage.filled = new
        return KVCache(storage, new)

    def select(self, rows: Tensor) -> KVCache:
        """Those of the given rows; the same ones in the same order cost nothing."""
        count = self.storage.keys.shape[0]
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return self
        # With the room behind them: whole rows are copied faster than their filled part.
        stored = (self.storage.keys, self.storage.values)
        keys, values = (each.index_select(0, rows) for each in stored)
        return KVCache(_Storage(keys, values, self.length), self.length)

    def detach(self) -> KVCache:
        return KVCache.of(self.keys.detach(), self.values.detach())

    def _roomier(self, capacity: int) -> _Storage:
        return _Storage(
            _with_room(self.keys, capacity), _with_room(self.values, capacity), self.length
        )


class SourceAssignment:
    """Which source each text of a batch is written beside: the same for all layers of a decoder."""

    def __init__(self, sources: Tensor, slots: Tensor, firsts: Tensor, texts: int) -> None:
        self.sources = sources
        """(B,) the source of each text, counted from 0."""
        self.slots = slots
        """(B,) which of its source's texts each is, 0, 1, 2 …"""
        self.first_texts = firsts
        """(S,) a text of each source."""
        self.texts = texts
        """The most texts that one source has."""
        self._chosen: tuple[Tensor, tuple[Tensor | None, SourceAssignment]] | None = None

    @classmethod
    def one_to_one(cls, rows: int, device: torch.device | None = None) -> SourceAssignment:
        """One text beside each source."""
        own = torch.arange(rows, device=device)
        return cls(own, torch.zeros_like(own), own, 1)

    def select(self, rows: Tensor) -> tuple[Tensor | None, SourceAssignment]:
        """Those sources (S',) that the given texts are beside, None for all; and who owns whom.

        Asked again for the same tensor, as by the next layer, it answers what it answered.
        """
        if self._chosen is None or self._chosen[0] is not rows:
            self._chosen = rows, self._selected(rows)
        return self._chosen[1]

    def _selected(self, rows: Tensor) -> tuple[Tensor | None, SourceAssignment]:
        chosen = self.sources[rows]
        if torch.equal(chosen, self.sources):
            return None, self
        left, sources, counts = chosen.unique(return_inverse=True, return_counts=True)
        order = sources.argsort(stable=True)
        begins = counts.cumsum(0) - counts
        slots = torch.empty_like(sources)
        slots[order] = torch.arange(len(rows), device=rows.device) - begins[sources[order]]
        owners = SourceAssignment(
            sources, slots, order[begins], int(counts.max()) if len(rows) else 0
        )
        return left if len(left) < len(self.first_texts) else None, owners


@dataclass(frozen=True, eq=False)
class CrossAttentionCache:
    """Keys and values (S, H, T, D) of sources, which no step changes, and who looks at them.

    Texts of one source, as in a beam, share them: to fork or to swap texts costs nothing, and they
    ask together, as the places of one text do.
    """

    keys: Tensor
    values: Tensor
    assignment: SourceAssignment

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, owners: SourceAssignment) -> CrossAttentionCache:
        """Those of sources (S, H, T, D), laid out once as every step will read them."""
        return cls(keys.contiguous(), values.contiguous(), owners)

    def select(self, rows: Tensor) -> CrossAttentionCache:
        """For the given texts; sources that have none left are dropped."""
        left, owners = self.assignment.select(rows)
        if left is None:
            return replace(self, assignment=owners)
        return CrossAttentionCache(self.keys[left], self.values[left], owners)

    def expand_to_texts(self) -> tuple[Tensor, Tensor]:
        """(B, H, T, D) keys and values of each text's source."""
        return self.keys[self.assignment.sources], self.values[self.assignment.sources]

    def group_queries(self, queries: Tensor) -> Tensor:
        """(S, H, texts · new, D) queries (B, H, new, D), those of one source beside each other."""
        _, heads, new, width = queries.shape
        gathered = queries.new_zeros(len(self.keys), self.assignment.texts, heads, new, width)
        gathered[self.assignment.sources, self.assignment.slots] = queries
        return gathered.transpose(1, 2).flatten(2, 3)

    def ungroup(self, found: Tensor, new: int) -> Tensor:
        """(B, new, W) what was found for them, (S, texts · new, W), by text again."""
        return found.unflatten(1, (-1, new))[self.assignment.sources, self.assignment.slots]

    def detach(self) -> CrossAttentionCache:
        return replace(self, keys=self.keys.detach(), values=self.values.detach())


def _with_room(kept: Tensor, capacity: int) -> Tensor:
    """(B, H, T, D) copied to the front of (B, H, capacity, D)."""
    room = kept.new_empty(*kept.shape[:2], capacity, kept.shape[3])
    room[:, :, : kept.shape[2]] = kept
    return room
