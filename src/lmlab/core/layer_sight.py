"""What the layers of a backbone look at, where that is less than a view allows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSight:
    """What one layer looks at, where it is less than a view allows, and words meet by helpers."""

    allowed: Tensor
    """(T + N, T + N) bool: entry (i, j) is true where i looks at j; T words, then N helpers."""
    helpers: tuple[str, ...]
    """What the N places that the network puts beside the words are called."""
