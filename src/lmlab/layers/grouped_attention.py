"""Grouped-query attention (Ainslie et al. 2023), dense or sparse, with optional QK norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.kv_cache import KVCache
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.sparse_attention import SparseAttention


class GroupedQueryAttention(MultiHeadAttention):
    """Grouped-query attention: H query heads share G key and value heads, H / G queries each.

    Head h reads the keys and values of head ⌊h G / H⌋, and the KV cache holds G heads alone: G = H
    is multi-head attention, G = 1 multi-query attention (Shazeer 2019). `query_norm` and `key_norm`
    act on each head's vectors (…, D) before the position encoding (QK norm, Henry et al. 2020).
    `output_bias` may differ from `bias`, that of queries, keys and values (Qwen2).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_value_heads: int,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        **options: Any,
    ) -> None:
        """`options`: those of `MultiHeadAttention`."""
        super().__init__(width, heads, bias=bias, **options)
        assert heads % key_value_heads == 0, (heads, key_value_heads)
        self.key_value_heads = key_value_heads
        self.query_norm, self.key_norm = query_norm, key_norm
        projected = (heads + 2 * key_value_heads) * self.head_width
        self.qkv_projection = nn.Linear(width, projected, bias=bias)
        if output_bias is not None:
            self.output = nn.Linear(self.inner_width, width, bias=output_bias)

    def initial_state(self, rows: int, like: Tensor) -> KVCache:
        return KVCache.empty(rows, self.key_value_heads, self.head_width, like)

    def _has_few_queries(self, values: Tensor, source: Tensor, context: LayerContext) -> bool:
        return False  # keys of few heads are cheap

    def _part(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        shared = self.key_value_heads * self.head_width
        starts = (0, *(self.inner_width + count * shared for count in range(3)))
        rows, bias = slice(starts[first], starts[last]), self.qkv_projection.bias
        return self.qkv_projection.weight[rows], None if bias is None else bias[rows]

    def _split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Queries (B, H, T, D), keys and values (B, G, T, D): the last two, or the first alone."""
        groups = self.key_value_heads
        counts = {1: (self.heads,), 2: (groups, groups), 3: (self.heads, groups, groups)}[parts]
        by_head = projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        vectors = list(by_head.split(counts, 1))
        if parts != 2 and self.query_norm is not None:
            vectors[0] = self.query_norm(vectors[0])
        if parts != 1 and self.key_norm is not None:
            vectors[-2] = self.key_norm(vectors[-2])
        return tuple(vectors)

    def _for_all_heads(self, shared: Tensor) -> Tensor:
        """(B, H, T, D) the keys or values (B, G, T, D) of each query head."""
        return shared.repeat_interleave(self.heads // self.key_value_heads, 1)

    def _masked_scores(
        self, queries: Tensor, keys: Tensor, context: LayerContext
    ) -> tuple[Tensor, bool]:
        return super()._masked_scores(queries, self._for_all_heads(keys), context)

    def _apply_weights(
        self, weights: Tensor, value_vectors: Tensor, context: LayerContext
    ) -> Tensor:
        return super()._apply_weights(weights, self._for_all_heads(value_vectors), context)


class SparseGroupedQueryAttention(SparseAttention, GroupedQueryAttention):  # type: ignore[misc]
    """Grouped-query attention under a sparse pattern: Mistral's sliding window (Jiang et al. 2023).

    `SparseAttention` computes in blocks of queries, `GroupedQueryAttention` each block.
    """
