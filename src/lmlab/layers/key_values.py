"""Keys and values of the inputs so far: what makes a step of a Transformer cost one place."""

from __future__ import annotations

from dataclasses import dataclass

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
    owners: Tensor | None = None
    """(B,) whose each row is, where rows of one owner are equal: the source of a text."""

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> KeyValues:
        """These keys and values, (B, H, T, D)."""
        return cls(_Storage(keys, values, keys.shape[2]), keys.shape[2])

    @classmethod
    def of_sources(cls, keys: Tensor, values: Tensor) -> KeyValues:
        """Those of sources, which no step changes: texts of one source swap for nothing."""
        owners = torch.arange(len(keys), device=keys.device)
        return cls(_Storage(keys, values, keys.shape[2]), keys.shape[2], owners)

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
        if self.owners is not None:
            owners = self.owners[rows]
            if torch.equal(owners, self.owners):
                return self
            kept = _Storage(self.keys[rows], self.values[rows], self.length)
            return KeyValues(kept, self.length, owners)
        count = self.storage.keys.shape[0]
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return self
        return KeyValues(self._roomier(self.length + SPARE, rows), self.length)

    def detach(self) -> KeyValues:
        kept = _Storage(self.keys.detach(), self.values.detach(), self.length)
        return KeyValues(kept, self.length, self.owners)

    def _roomier(self, capacity: int, rows: Tensor | None = None) -> _Storage:
        keys, values = (
            _with_room(old if rows is None else old[rows], capacity)
            for old in (self.keys, self.values)
        )
        return _Storage(keys, values, self.length)


def _with_room(kept: Tensor, capacity: int) -> Tensor:
    """(B, H, T, D) copied to the front of (B, H, capacity, D)."""
    room = kept.new_empty(*kept.shape[:2], capacity, kept.shape[3])
    room[:, :, : kept.shape[2]] = kept
    return room
