"""Batch: padded token sequences with optional sources (condition), labels, entities; collation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B sequences of at most T tokens. Position 0 is context; 1 to length - 1 are predicted."""

    tokens: Tensor
    """(B, T) int64, padded at the end."""
    lengths: Tensor
    """(B,) int64: tokens of each sequence, including context, excluding padding."""
    rows: Tensor
    """(B,) int64: index of each sequence in its dataset (of each stream, for contiguous text)."""
    condition: Batch | None = None
    """What each sequence is conditioned on (a source sentence), row by row."""
    labels: Tensor | None = None
    """(B, …) labels of each sequence, if a task predicts more than its tokens."""
    entities: Tensor | None = None
    """(B, T) the annotated entity that covers each position, -1 where none does."""
    continues_previous: bool = False
    """Whether each row continues the same row of the previous batch."""

    def __post_init__(self) -> None:
        size = self.tokens.shape[0]
        assert self.tokens.ndim == 2 and self.tokens.dtype == torch.int64, self.tokens.shape
        assert self.lengths.shape == (size,) and self.rows.shape == (size,), self.lengths.shape
        assert self.condition is None or len(self.condition) == size
        assert self.entities is None or self.entities.shape == self.tokens.shape

    def __len__(self) -> int:
        """Number of sequences B."""
        return self.tokens.shape[0]

    @property
    def count(self) -> int:
        """Number of predicted tokens: the denominator of a summed loss."""
        return int((self.lengths - 1).clamp(min=0).sum())

    def targets_mask(self) -> Tensor:
        """(B, T) bool: the predicted positions, 1 to length - 1."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (positions >= 1) & (positions < self.lengths[:, None])

    def mask(self) -> Tensor:
        """(B, T) bool: the unpadded positions, context included."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return positions < self.lengths[:, None]

    def select(self, rows: Tensor | Sequence[int]) -> Batch:
        """The given rows of this batch, in that order; T does not change."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.tokens.device)
        return replace(
            self,
            tokens=self.tokens[index],
            lengths=self.lengths[index],
            rows=self.rows[index],
            condition=None if self.condition is None else self.condition.select(index),
            labels=None if self.labels is None else self.labels[index],
            entities=None if self.entities is None else self.entities[index],
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            lengths=self.lengths.to(device, non_blocking=True),
            rows=self.rows.to(device, non_blocking=True),
            condition=None if self.condition is None else self.condition.to(device),
            labels=None if self.labels is None else self.labels.to(device),
            entities=None if self.entities is None else self.entities.to(device),
        )

    @classmethod
    def collate(
        cls,
        sequences: Sequence[Sequence[int] | np.ndarray],
        pad: int,
        *,
        rows: Sequence[int] | np.ndarray | None = None,
        condition: Batch | None = None,
        continues_previous: bool = False,
    ) -> Batch:
        """Sequences of ids, each with its context first, padded to the longest."""
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        tokens = np.full((len(sequences), lengths.max(initial=0)), pad, dtype=np.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = sequence
        row_ids = np.arange(len(sequences)) if rows is None else np.array(rows, dtype=np.int64)
        return cls(
            tokens=torch.from_numpy(tokens),
            lengths=torch.from_numpy(lengths),
            rows=torch.from_numpy(row_ids),
            condition=condition,
            continues_previous=continues_previous,
        )
