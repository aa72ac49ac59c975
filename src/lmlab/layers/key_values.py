"""Keys and values of the inputs so far: what makes a step of a Transformer cost one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

SPARE = 16
"""Places that fresh storage has room for beyond those it is made with."""


class _Storage:
    """Room for keys and values, (B, H, capacity, D) each, of which the first `filled` are taken."""

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        self.keys, self.values, self.filled = keys, values, filled


@dataclass(frozen=True, eq=False)
class KeyValues:
    """Keys and values (B, H, length, D); it never changes, what is appended is a new one.

    The new one writes into the same storage behind the last place, where nobody has written yet:
    so a step costs one place, not a copy of all of them. Whoever appends to an older one finds the
    place taken and copies.
    """

    storage: _Storage
    length: int

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> KeyValues:
        """These keys and values, (B, H, T, D)."""
        return cls(_Storage(keys, values, keys.shape[2]), keys.shape[2])

    @classmethod
    def empty(cls, rows: int, heads: int, width: int, like: Tensor) -> KeyValues:
        """Of no place yet."""
        nothing = like.new_empty(rows, heads, 0, width)
        return cls.of(nothing, nothing)

    @property
    def keys(self) -> Tensor:
        return self.storage.keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        return self.storage.values[:, :, : self.length]

    def append(self, keys: Tensor, values: Tensor) -> KeyValues:
        """These and those of the new places, (B, H, new, D)."""
        if torch.is_grad_enabled() and (keys.requires_grad or self.keys.requires_grad):
            joined = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
            return KeyValues.of(*joined)
        new = self.length + keys.shape[2]
        room = self.storage.keys.shape[2]
        mine = self.storage if self.storage.filled == self.length and new <= room else None
        storage = mine or self._roomier(max(2 * self.length, new + SPARE))
        storage.keys[:, :, self.length : new] = keys
        storage.values[:, :, self.length : new] = values
        storage.filled = new
        return KeyValues(storage, new)

    def select(self, rows: Tensor) -> KeyValues:
        """Those of the given rows; the same ones in the same order cost nothing."""
        count = self.storage.keys.shape[0]
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return self
        # With the room behind them: whole rows are copied faster than their filled part.
        stored = (self.storage.keys, self.storage.values)
        keys, values = (each.index_select(0, rows) for each in stored)
        return KeyValues(_Storage(keys, values, self.length), self.length)

    def detach(self) -> KeyValues:
        return KeyValues.of(self.keys.detach(), self.values.detach())

    def _roomier(self, capacity: int) -> _Storage:
        return _Storage(
            _with_room(self.keys, capacity), _with_room(self.values, capacity), self.length
        )


@dataclass(frozen=True, eq=False)
class SourceKeyValues:
    """Keys and values (S, H, T, D) of sources, which no step changes, and who looks at them.

    Texts of one source, as in a beam, share them: to fork or to swap texts costs nothing, and they
    ask together, as the places of one text do.
    """

    keys: Tensor
    values: Tensor
    owners: Tensor
    """(B,) the source of each text, as a row of the keys."""
    slots: Tensor
    """(B,) which of its source's texts each is, 0, 1, 2 …"""
    firsts: Tensor
    """(S,) a text of each source."""

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> SourceKeyValues:
        """Those of sources (B, H, T, D), one text beside each."""
        rows = torch.arange(len(keys), device=keys.device)
        # Laid out once as every step will read them.
        return cls(keys.contiguous(), values.contiguous(), rows, torch.zeros_like(rows), rows)

    def select(self, rows: Tensor) -> SourceKeyValues:
        """For the given texts; sources that have none left are dropped."""
        owners = self.owners[rows]
        if torch.equal(owners, self.owners):
            return self
        sources, owners, counts = owners.unique(return_inverse=True, return_counts=True)
        keys, values = self.keys, self.values
        if len(sources) < len(keys):
            keys, values = keys[sources], values[sources]
        order = owners.argsort(stable=True)
        begins = counts.cumsum(0) - counts
        slots = torch.empty_like(owners)
        slots[order] = torch.arange(len(rows), device=rows.device) - begins[owners[order]]
        return SourceKeyValues(keys, values, owners, slots, order[begins])

    def together(self, queries: Tensor) -> Tensor:
        """(S, H, texts · new, D) queries (B, H, new, D), those of one source beside each other."""
        _, heads, new, width = queries.shape
        texts = int(self.slots.max()) + 1
        gathered = queries.new_zeros(len(self.keys), texts, heads, new, width)
        gathered[self.owners, self.slots] = queries
        return gathered.transpose(1, 2).flatten(2, 3)

    def apart(self, found: Tensor, new: int) -> Tensor:
        """(B, new, W) what was found for them, (S, texts · new, W), by text again."""
        return found.unflatten(1, (-1, new))[self.owners, self.slots]

    def detach(self) -> SourceKeyValues:
        return replace(self, keys=self.keys.detach(), values=self.values.detach())


def _with_room(kept: Tensor, capacity: int) -> Tensor:
    """(B, H, T, D) copied to the front of (B, H, capacity, D)."""
    room = kept.new_empty(*kept.shape[:2], capacity, kept.shape[3])
    room[:, :, : kept.shape[2]] = kept
    return room
