"""Sparse attention patterns: sliding window, strided, global tokens; which keys a block needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer

DENSE = "dense"
"""The setting for attention to all positions."""
PARTS = ("window", "strided", "global")
"""The names of the parts of a pattern."""
MIN_BLOCK, MAX_BLOCK = 16, 128
"""Queries computed together: shorter blocks are slow, longer ones have keys that few need."""


@dataclass(frozen=True, kw_only=True)
class SparsePattern:
    """Sparse attention pattern: i attends to j if they are near, a stride apart, or one is global.

        |i - j| < window  or  (i - j) mod stride = 0  or  i < global_tokens  or  j < global_tokens

    The sliding window and global tokens are Longformer's (Beltagy et al. 2020), the window with
    strides Child et al.'s (2019), both in one head. i and j are position ids; the attention mask
    applies as well, so a causal model attends to earlier positions only. `stride` 0 has none.
    """

    window: int = 1
    stride: int = 0
    global_tokens: int = 0

    @classmethod
    def parse(cls, text: str) -> SparsePattern | None:
        """The pattern of a setting such as `window:64+global:2`; None for `dense`.

        `strided:8` alone has a window of 8, as in the paper.
        """
        if text == DENSE:
            return None
        parts: dict[str, int] = {}
        for part in text.split("+"):
            name, _, number = part.partition(":")
            value = parse_integer(number)
            if name not in PARTS or name in parts or not value:
                raise _malformed(text)
            parts[name] = value
        if min(parts.values()) < 1:
            raise _malformed(text)
        stride = parts.get("strided", 0)
        window = parts.get("window", max(stride, 1))
        return cls(window=window, stride=stride, global_tokens=parts.get("global", 0))

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(…, Tq, Tk) bool: which keys at positions (…, Tk) each query (…, Tq) attends to."""
        distance = queries[..., :, None] - keys[..., None, :]
        allowed = distance.abs() < self.window
        if self.stride:
            allowed = allowed | (distance % self.stride == 0)
        if self.global_tokens:
            first_queries, first_keys = queries < self.global_tokens, keys < self.global_tokens
            allowed = allowed | first_queries[..., :, None] | first_keys[..., None, :]
        return allowed

    def key_groups(self, time: int, *, causal: bool) -> tuple[KeyGroups, ...]:
        """Keys of all queries of a text of `time` positions, but of global queries: by blocks of
        neighbours, and by residue where there is a stride. No pair is in two of them."""
        blocks = _window_groups(self, time, causal)
        return (blocks, _strided_groups(self, time, causal)) if self.stride else (blocks,)

    @property
    def block(self) -> int:
        """Queries computed together."""
        return min(max(self.window, MIN_BLOCK), MAX_BLOCK)

    def is_worthwhile(self, time: int) -> bool:
        """Whether a text of `time` positions is long enough for blocks to have fewer keys."""
        return time > 2 * (self.block + self.window) + self.global_tokens


@dataclass(frozen=True, eq=False)
class KeyGroups:
    """Queries in R groups of C, each with the K keys that some of them attend to."""

    queries: Tensor
    """(R, C) indices of the queries; every query is in one group."""
    keys: Tensor
    """(R, K) indices of the keys."""
    allowed: Tensor
    """(R, C, K) bool: which of its group's keys a query attends to."""
    order: Tensor
    """(T,) where each query is among the R · C."""

    def to(self, device: torch.device) -> KeyGroups:
        tables = (self.queries, self.keys, self.allowed, self.order)
        return KeyGroups(*(table.to(device) for table in tables))

    def split(self, values: Tensor, index: Tensor) -> Tensor:
        """(B · R, H, C or K, D) the vectors (B, H, T, D) of the groups' queries or keys."""
        grouped = values.index_select(2, index.flatten()).unflatten(2, index.shape)
        return grouped.transpose(1, 2).flatten(0, 1)

    def join(self, values: Tensor, rows: int) -> Tensor:
        """(B, H, T, D) vectors (B · R, H, C, D) of the groups' queries, in the queries' order."""
        joined = values.unflatten(0, (rows, -1)).transpose(1, 2).flatten(2, 3)
        return joined.index_select(2, self.order)


@lru_cache(maxsize=16)
def _window_groups(pattern: SparsePattern, time: int, causal: bool) -> KeyGroups:
    """Blocks of neighbours, with the keys within their windows and the global ones."""
    block, reach = pattern.block, pattern.window - 1
    first = torch.arange(0, time, block)[:, None]
    queries = first + torch.arange(block)
    near = first - reach + torch.arange(block + (1 if causal else 2) * reach)
    first_keys = torch.arange(pattern.global_tokens).expand(len(first), -1)
    keys = torch.cat([first_keys, near], 1)
    distance = queries[:, :, None] - keys[:, None, :]
    allowed = distance.abs() < pattern.window
    # A global key inside the window is already among the near ones.
    is_global = torch.arange(keys.shape[1]) < pattern.global_tokens
    allowed = torch.where(is_global, ~allowed, allowed)
    allowed &= ((keys >= 0) & (keys < time))[:, None]
    if causal:
        allowed &= distance >= 0
    return KeyGroups(
        queries.clamp(max=time - 1), keys.clamp(0, time - 1), allowed, torch.arange(time)
    )


@lru_cache(maxsize=16)
def _strided_groups(pattern: SparsePattern, time: int, causal: bool) -> KeyGroups:
    """Positions of one residue attend to each other, but to those that `_window_groups` has."""
    stride = pattern.stride
    count = -(-time // stride)
    members = torch.arange(stride)[:, None] + stride * torch.arange(count)
    distance = members[:, :, None] - members[:, None, :]
    allowed = (distance.abs() >= pattern.window) & (members >= pattern.global_tokens)[:, None]
    allowed &= (members < time)[:, None]
    if causal:
        allowed &= distance >= 0
    members, position = members.clamp(max=time - 1), torch.arange(time)
    order = position % stride * count + position // stride
    return KeyGroups(members, members, allowed, order)


def _malformed(text: str) -> UserError:
    return UserError(
        f"attention must be dense, or some of window:N, strided:N and global:N joined by +, with "
        f"N at least 1, such as window:64+global:2; got {text!r}."
    )
