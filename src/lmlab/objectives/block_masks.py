"""Rank-based attention masks (a position sees equal and lower ranks); rows joined from blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.view import NO_TARGET, View


def rank_mask(ranks: Tensor, is_query: Tensor | None = None) -> ExplicitMask:
    """Attention mask by rank: a position attends to its own rank and lower ones; ranks (B, T).

    Equal ranks give bidirectional attention, increasing ranks causal, decreasing ranks
    right-to-left. A query position, `is_query` (B, T), attends to lower ranks and itself only, and
    no other position attends to it: a mask next to the text, at which the token of its rank is
    predicted.
    """
    lower, equal = ranks[:, None, :] < ranks[:, :, None], ranks[:, None, :] == ranks[:, :, None]
    if is_query is None:
        return ExplicitMask(lower | equal)
    itself = torch.eye(ranks.shape[1], dtype=torch.bool, device=ranks.device)
    others = (lower | (equal & ~is_query[:, :, None])) & ~is_query[:, None, :]
    return ExplicitMask(others | itself)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenBlock:
    """n positions of each row, some of them real; (B, n) tensors, integers are broadcast."""

    inputs: Tensor
    real: Tensor
    """bool"""
    positions: Tensor
    """(B, n), or (B, n, 2) for 2D positions."""
    ranks: Tensor | int
    """Generation order: a position attends to the same or a lower rank."""
    segments: Tensor | int | None = None
    """Segment ids; None for networks without segment embeddings."""
    targets: Tensor | int = NO_TARGET
    clean_positions: Tensor | int = -1
    is_query: Tensor | bool = False
    """Whether it is a query mask, to which no other position attends."""

    def tensor(self, name: str) -> Tensor:
        value = getattr(self, name)
        if isinstance(value, Tensor):
            return value.expand(*self.inputs.shape, *value.shape[2:])
        kind = torch.bool if isinstance(value, bool) else torch.long
        return torch.full(self.inputs.shape, value, dtype=kind, device=self.inputs.device)


def join_blocks(blocks: Sequence[TokenBlock], *, pad: int) -> View:
    """Join the real positions of all blocks into one view, sorted by rank.

    Positions of equal rank keep their order. Cost O(T log T) to sort, O(T²) for the attention mask.
    """
    plain = any(block.segments is None for block in blocks)
    names = [field.name for field in fields(TokenBlock)]
    if plain:
        names.remove("segments")
    parts = {name: torch.cat([block.tensor(name) for block in blocks], 1) for name in names}
    real = parts.pop("real")
    lengths = real.sum(1)
    last = parts["ranks"].max() + 1
    order = parts["ranks"].masked_fill(~real, int(last)).argsort(dim=1, stable=True)
    order = order[:, : int(lengths.max())]
    parts = {name: gather_positions(values, order) for name, values in parts.items()}
    padding = torch.arange(order.shape[1], device=order.device) >= lengths[:, None]
    several = padding[..., None] if parts["positions"].ndim == 3 else padding
    return View(
        inputs=parts["inputs"].masked_fill(padding, pad),
        lengths=lengths,
        attention_mask=rank_mask(parts["ranks"], parts["is_query"]),
        targets=parts["targets"].masked_fill(padding, NO_TARGET),
        positions=parts["positions"].masked_fill(several, 0),
        segments=None if plain else parts["segments"].masked_fill(padding, 0),
        clean_positions=parts["clean_positions"].masked_fill(padding, -1),
    )


def gather_positions(values: Tensor, positions: Tensor) -> Tensor:
    """(B, N, …) values (B, T, …) at the given positions (B, N)."""
    return values[torch.arange(len(values), device=values.device)[:, None], positions]


def log_probs_by_clean_position(network: Network, view: View, batch: Batch) -> LogProbs:
    """Exact log-probabilities of a view's targets, by their positions in the clean batch."""
    predictions = network.target_log_probs(view)
    assert view.clean_positions is not None
    rows = predictions.target_mask.nonzero(as_tuple=True)[0]
    index = (rows, view.clean_positions[predictions.target_mask])
    per_token = predictions.log_probs.new_zeros(batch.tokens.shape)
    per_token = per_token.index_put(index, predictions.log_probs)
    return LogProbs(per_token=per_token[:, 1:], kind="exact")
