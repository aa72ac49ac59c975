"""Sparse attention (Child et al. 2019; Beltagy et al. 2020), computed in blocks; bounded KV cache.

Time and memory grow with the number of pairs that the pattern allows, not with T².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmlab.core.state import State
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.kv_cache import KVCache
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.sparse_pattern import KeyGroups, SparsePattern


@dataclass(frozen=True, eq=False)
class SparseKVCache:
    """KV cache without the positions that a pattern will not attend to again."""

    cache: KVCache
    first: int = 0
    """How many of the first positions are retained for ever: the global tokens."""
    dropped: int = 0
    """How many positions after them are dropped."""

    def append(self, keys: Tensor, values: Tensor) -> SparseKVCache:
        return SparseKVCache(self.cache.append(keys, values), self.first, self.dropped)

    def retained(self, pattern: SparsePattern) -> SparseKVCache:
        """Without those outside the window; dropped in bulk, so that a step costs no copy."""
        first, recent = pattern.global_tokens, pattern.window - 1
        surplus = self.cache.length - first - recent
        if pattern.stride or surplus <= recent:
            return self
        kept = [
            torch.cat([cached[:, :, :first], cached[:, :, first + surplus :]], 2)
            for cached in (self.cache.keys, self.cache.values)
        ]
        return SparseKVCache(KVCache.of(*kept), first, self.dropped + surplus)

    def indices(self) -> Tensor:
        """(K,) which of all positions so far are retained."""
        index = torch.arange(self.cache.length, device=self.cache.keys.device)
        return torch.where(index < self.first, index, index + self.dropped)

    def select(self, rows: Tensor) -> SparseKVCache:
        return SparseKVCache(self.cache.select(rows), self.first, self.dropped)

    def detach(self) -> SparseKVCache:
        return SparseKVCache(self.cache.detach(), self.first, self.dropped)


class SparseAttention(MultiHeadAttention):
    """Multi-head attention under a `SparsePattern`, equal to dense attention under the same mask.

    A text at positions 0, 1, 2 … is computed in groups of queries that share their keys: O(T ·
    (window + global tokens + T / stride) · W). Captured weights, queries elsewhere and texts at
    other positions are computed densely under the pattern's mask.
    """

    is_sparse = True

    def __init__(self, width: int, heads: int, *, pattern: SparsePattern, **options: Any) -> None:
        """`options`: those of `MultiHeadAttention`."""
        super().__init__(width, heads, **options)
        self.pattern = pattern

    def initial_state(self, rows: int, like: Tensor) -> SparseKVCache:  # type: ignore[override]
        return SparseKVCache(super().initial_state(rows, like))

    def step(  # type: ignore[override]
        self, values: Tensor, context: LayerContext, state: State
    ) -> tuple[Tensor, SparseKVCache]:
        """Incremental self-attention; a window's cache keeps the window and the global tokens."""
        assert isinstance(state, SparseKVCache)
        queries, keys, value_vectors = self._split(self.qkv_projection(values), 3)
        extended = state.append(
            self._with_key_positions(keys, context.query_positions), value_vectors
        )
        here = context.select_keys(extended.indices()) if extended.dropped else context
        output = self._attend(queries, extended.cache.keys, extended.cache.values, here)
        return output, extended.retained(self.pattern) if can_drop_keys(context) else extended

    def attend_to_cache(self, values: Tensor, context: LayerContext, cache: State) -> Tensor:
        assert isinstance(cache, SparseKVCache)
        here = context.select_keys(cache.indices()) if cache.dropped else context
        return self._attend(self.queries(values), cache.cache.keys, cache.cache.values, here)

    def _has_few_queries(self, values: Tensor, source: Tensor, context: LayerContext) -> bool:
        return False  # they would see all keys

    def _weighted_mean(
        self,
        queries: Tensor,
        keys: Tensor,
        value_vectors: Tensor,
        context: LayerContext,
        *,
        fused: bool = True,
    ) -> Tensor:
        """(B, H, Tq, D) the weighted means of the values, group by group if that is cheaper."""
        time = queries.shape[2]
        whole = time == keys.shape[2] and context.record is None
        if whole and self.pattern.is_worthwhile(time) and at_plain_positions(context):
            return self._by_groups(queries, keys, value_vectors, context)
        allowed = self.pattern.allowed(context.query_positions, context.key_positions)
        masked = context.with_score_bias().restricted(allowed[:, None])
        return super()._weighted_mean(queries, keys, value_vectors, masked, fused=fused)

    # Whole texts, in groups ---------------------------------------------------------------------

    def _by_groups(
        self, queries: Tensor, keys: Tensor, value_vectors: Tensor, context: LayerContext
    ) -> Tensor:
        """(B, H, T, D) the weighted means of a text at positions 0, 1, 2 …."""
        groups = [
            group.to(queries.device)
            for group in self.pattern.key_groups(queries.shape[2], causal=context.causal)
        ]
        if len(groups) > 1:
            mean = self._by_joint_softmax(queries, keys, value_vectors, context, groups)
        else:
            [group] = groups
            split = group.split(queries, group.queries), group.split(keys, group.keys)
            grouped_values = group.split(value_vectors, group.keys)
            here = group_context(context, group, len(queries))
            mean = group.join(super()._weighted_mean(*split, grouped_values, here), len(queries))
        first = self.pattern.global_tokens
        if not first or context.causal:
            return mean
        # Global tokens attend to all positions.
        index = torch.arange(first, device=queries.device).expand(len(queries), -1)
        everywhere = context.at_positions(index).with_score_bias()
        of_global = super()._weighted_mean(queries[:, :, :first], keys, value_vectors, everywhere)
        return torch.cat([of_global, mean[:, :, first:]], 2)

    def _by_joint_softmax(
        self,
        queries: Tensor,
        keys: Tensor,
        value_vectors: Tensor,
        context: LayerContext,
        groups: list[KeyGroups],
    ) -> Tensor:
        """(B, H, T, D) the same where a query has keys in several groups: one softmax over all."""
        rows = len(queries)
        contexts = [group_context(context, group, rows) for group in groups]
        scores = []
        for group, here in zip(groups, contexts, strict=True):
            split = group.split(queries, group.queries), group.split(keys, group.keys)
            scores.append(group.join(self._masked_scores(*split, here)[0], rows))
        weights = self._weights(torch.cat(scores, -1), is_masked=True)
        shares = weights.split([part.shape[-1] for part in scores], -1)
        means = []
        for group, here, share in zip(groups, contexts, shares, strict=True):
            grouped_values = group.split(value_vectors, group.keys)
            mean = self._apply_weights(group.split(share, group.queries), grouped_values, here)
            means.append(group.join(mean, rows))
        return torch.stack(means).sum(0)


def group_context(context: LayerContext, group: KeyGroups, rows: int) -> LayerContext:
    """The context of the groups of `rows` texts, each group as a row of its own."""

    def entries(values: Tensor, index: Tensor) -> Tensor:
        picked = values[:, index]
        return picked.expand(rows, *picked.shape[1:]).flatten(0, 1)

    allowed = group.allowed
    if context.mask is None:
        mask = allowed.expand(rows, 1, *allowed.shape)
    else:
        mask = context.mask[:, :, group.queries[:, :, None], group.keys[:, None, :]]
        mask = (
            mask & allowed if mask.dtype == torch.bool else mask.masked_fill(~allowed, -torch.inf)
        )
        mask = mask.expand(rows, *mask.shape[1:])
    segments = context.query_segments, context.key_segments
    return LayerContext(
        mask=mask.transpose(1, 2).flatten(0, 1),
        query_positions=entries(context.query_positions, group.queries),
        key_positions=entries(context.key_positions, group.keys),
        query_segments=None if segments[0] is None else entries(segments[0], group.queries),
        key_segments=None if segments[1] is None else entries(segments[1], group.keys),
        score_bias=context.score_bias,
    ).with_score_bias()


def at_plain_positions(context: LayerContext) -> bool:
    """Whether the keys are at positions 0, 1, 2 … in every row."""
    positions = context.key_positions
    return bool((positions == torch.arange(positions.shape[1], device=positions.device)).all())


def can_drop_keys(context: LayerContext) -> bool:
    """Whether a step's keys are at positions 0, 1, 2 … without padding, so that slots are positions
    and what is outside the window of one step stays outside."""
    if not at_plain_positions(context):
        return False
    return context.mask is None or (
        context.mask.dtype == torch.bool and bool(context.mask[..., -1, :].all())
    )
