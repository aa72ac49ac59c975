"""Multi-head scaled dot-product attention (Vaswani et al. 2017), with cosine and hard variants."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask, NoContextMask
from lmlab.core.state import State
from lmlab.layers.kv_cache import CrossAttentionCache, KVCache
from lmlab.layers.relative_positions import RelativePositionEncoding, RelativeValueEncoding
from lmlab.layers.sequence_mixer import CausalMixer, LayerContext

PLAIN_PRODUCT_ROWS = 32
"""Batch size from which a single query per row is faster by plain products than fused."""


class DotProductScores(nn.Module):
    """Scaled dot product q · k / (√D · temperature) (Vaswani et al. 2017).

    At temperature 0 all weight falls on the best key (hard attention); the gradient there is that
    of temperature 1 (straight through).
    """

    def __init__(self, head_width: int, *, temperature: float = 1.0, scaled: bool = True) -> None:
        super().__init__()
        self.hard = temperature == 0
        natural = 1 / math.sqrt(head_width) if scaled else 1.0
        self.scale = natural if self.hard else natural / temperature
        """Factor of the inner products."""
        self.position_scale = self.scale
        """Factor of the products of queries with position vectors."""

    def queries_for_positions(self, queries: Tensor) -> Tensor:
        """Queries (B, H, T, D) for the products with position vectors."""
        return queries

    def prepare(self, vectors: Tensor) -> Tensor:
        """Queries or keys (B, H, T, D) before their products are taken."""
        return vectors


class CosineScores(DotProductScores):
    """Cosine attention √D cos(q, k) / temperature: only the directions of queries and keys count.

    For vectors of the usual norm √D it equals q · k / √D. Position vectors r keep their norms and
    are multiplied with queries q̃ = √D q / |q|: the term is q̃ · r / √D = cos(q, r) |r| (over the
    temperature), and with a bias u on the queries the score is √D cos(q̃ + u, k).
    """

    def __init__(self, head_width: int, *, temperature: float = 1.0) -> None:
        super().__init__(head_width, temperature=temperature, scaled=False)
        self.length = math.sqrt(head_width)
        self.position_scale = self.scale / self.length
        self.scale *= self.length

    def queries_for_positions(self, queries: Tensor) -> Tensor:
        return F.normalize(queries, dim=-1) * self.length

    def prepare(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1)


class MultiHeadAttention(CausalMixer):
    """Multi-head attention: each of H heads outputs Σ_j softmax_j(score(q_i, k_j)) v_j.

    q, k and v are linear maps of `values` (B, Tq, W); k and v of `source` (B, Tk, W) if given: an
    encoder's output, the content stream. `positions` acts on the scores. Cost O(Tq · Tk · W).
    """

    supported_masks = (CausalMask, FullMask, NoContextMask, ExplicitMask)
    has_bounded_state = False

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int | None = None,
        scores: DotProductScores | None = None,
        positions: RelativePositionEncoding | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = head_width or width // heads
        self.inner_width = heads * self.head_width
        self.scores = scores or DotProductScores(self.head_width)
        self.positions = positions
        self.dropout = dropout
        # One matrix for queries, keys and values, in this order: one large product, not three.
        self.qkv_projection = nn.Linear(width, 3 * self.inner_width, bias=bias)
        self.output = nn.Linear(self.inner_width, width, bias=bias)

    def forward(
        self,
        values: Tensor,
        context: LayerContext,
        *,
        source: Tensor | None = None,
        projected: Tensor | None = None,
    ) -> Tensor:
        """(B, Tq, W) attention outputs; `projected` is the output of `qkv_projection`, if at hand.

        With few queries, the keys and values of a source are not computed: see `_attend_from_few`.
        """
        if source is None:
            projected = self.qkv_projection(values) if projected is None else projected
            if context.shared_prefixes is not None:
                projected = context.shared_prefixes.expand(projected)
            queries, keys, value_vectors = self._split(projected, 3)
            keys = self._with_key_positions(keys, context.key_positions)
        elif self._has_few_queries(values, source, context):
            return self._attend_from_few(values, source, context)
        else:
            queries = self.queries(values)
            keys, value_vectors = self.keys_values(source, context.key_positions)
        return self._attend(queries, keys, value_vectors, context)

    def initial_state(self, rows: int, like: Tensor) -> KVCache:
        return KVCache.empty(rows, self.heads, self.head_width, like)

    def step(self, values: Tensor, context: LayerContext, state: State) -> tuple[Tensor, KVCache]:
        """Incremental self-attention of new positions, (B, new, W), and the extended KV cache."""
        assert isinstance(state, KVCache)
        queries, keys, value_vectors = self._split(self.qkv_projection(values), 3)
        positioned = self._with_key_positions(keys, context.query_positions)
        extended = state.append(positioned, value_vectors)
        single_query = queries.shape[2] == 1 and len(queries) >= PLAIN_PRODUCT_ROWS
        return self._attend(
            queries, extended.keys, extended.values, context, fused=not single_query
        ), extended

    def attend_to_cache(self, values: Tensor, context: LayerContext, cache: State) -> Tensor:
        """(B, new, W) attention to the cached positions, without extending the KV cache."""
        assert isinstance(cache, KVCache)
        return self._attend(self.queries(values), cache.keys, cache.values, context)

    def cross_attend(
        self, values: Tensor, context: LayerContext, cache: CrossAttentionCache
    ) -> Tensor:
        """(B, new, W) cross-attention to sources with cached `keys_values`.

        Texts of one source are grouped as queries of one row, which share its keys and values.
        """
        queries = self.queries(values)
        if self.positions is not None:
            return self._attend(queries, *cache.expand_to_texts(), context)
        shared = context.select_rows(cache.assignment.first_texts)
        grouped = cache.group_queries(queries)
        # With a handful of queries, plain products are faster than the fused kernel.
        outputs = self._attend(grouped, cache.keys, cache.values, shared, fused=False)
        return cache.ungroup(outputs, values.shape[1])

    def queries(self, values: Tensor) -> Tensor:
        """(B, H, T, D) the queries alone."""
        weight, bias = self._part(0, 1)
        return self._split(F.linear(values, weight, bias), 1)[0]

    def keys_values(self, source: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, T, D) the keys and values of a source."""
        weight, bias = self._part(1, 3)
        keys, value_vectors = self._split(F.linear(source, weight, bias), 2)
        return self._with_key_positions(keys, positions), value_vectors

    def _part(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        rows = slice(first * self.inner_width, last * self.inner_width)
        bias = self.qkv_projection.bias
        return self.qkv_projection.weight[rows], None if bias is None else bias[rows]

    def _split(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, T, parts · H · D) as `parts` tensors (B, H, T, D)."""
        rows, time = projected.shape[:2]
        shaped = projected.view(rows, time, parts, self.heads, self.head_width)
        return shaped.permute(2, 0, 3, 1, 4).unbind(0)

    def _with_key_positions(self, keys: Tensor, positions: Tensor) -> Tensor:
        return keys if self.positions is None else self.positions.transform_keys(keys, positions)

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        value_vectors: Tensor,
        context: LayerContext,
        *,
        fused: bool = True,
    ) -> Tensor:
        """(B, Tq, W) the weighted means of the values, through the output map."""
        mean = self._weighted_mean(queries, keys, value_vectors, context, fused=fused)
        if context.disabled_heads:
            mean = zero_disabled_heads(mean, context.disabled_heads)
        concatenated = mean.transpose(1, 2).flatten(2)
        return self.output(
            concatenated
            if context.shared_prefixes is None
            else context.shared_prefixes.gather(concatenated)
        )

    def _weighted_mean(
        self,
        queries: Tensor,
        keys: Tensor,
        value_vectors: Tensor,
        context: LayerContext,
        *,
        fused: bool = True,
    ) -> Tensor:
        """(B, H, Tq, D) the weighted means of the values, by each head."""
        if fused and not self._needs_weights(context):
            positioned, context = self._with_query_positions(queries, context)
            prepared = self.scores.prepare(positioned), self.scores.prepare(keys)
            return self._attend_fused(*prepared, value_vectors, context)
        scores, is_masked = self._masked_scores(queries, keys, context)
        return self._apply_weights(
            self._weights(scores, is_masked=is_masked), value_vectors, context
        )

    def _needs_weights(self, context: LayerContext) -> bool:
        """Whether the fused kernel does not do, which returns no weights."""
        return context.record is not None or self.scores.hard or self._values_have_positions

    def _with_query_positions(
        self, queries: Tensor, context: LayerContext
    ) -> tuple[Tensor, LayerContext]:
        """Queries (B, H, Tq, D) for the keys, and the context with the position bias."""
        if self.positions is None:
            return queries, context
        queries_for_positions = self.scores.queries_for_positions(queries)
        extra = self.positions.bias(queries_for_positions, context)
        if extra is None:
            # A rotation preserves norms, so the queries need not be normalised before it.
            return self.positions.transform_queries(queries, context.query_positions), context
        positioned = self.positions.transform_queries(
            queries_for_positions, context.query_positions
        )
        return positioned, context.with_bias(extra * self.scores.position_scale)

    def _has_few_queries(self, values: Tensor, source: Tensor, context: LayerContext) -> bool:
        """Whether queries are so few that it is cheaper not to compute keys and values."""
        if torch.is_grad_enabled() or context.record is not None or context.causal:
            return False
        plain = (
            type(self.scores) is DotProductScores
            and not self.scores.hard
            and self.positions is None
        )
        dropped = self.training and self.dropout > 0
        few = min(source.shape[1] / 4, self.head_width / 2)
        return plain and not dropped and values.shape[1] <= few

    def _attend_from_few(self, values: Tensor, source: Tensor, context: LayerContext) -> Tensor:
        """(B, M, W) the same for M queries to a source (B, T, W), without computing its keys.

        q · (K x + b) = (Kᵀ q) · x + q · b, whose last term the softmax cancels, and Σ w (V x + c) =
        V Σ w x + c: so K and V are applied to the queries instead of to the whole source. Cost O(M
        (H T W + W²)) per row instead of O(T W²).
        """
        rows, count = values.shape[:2]
        parts = self.qkv_projection.weight.view(3, self.heads, self.head_width, -1)
        projected_queries = torch.einsum("bhmd,hdw->bhmw", self.queries(values), parts[1]).flatten(
            1, 2
        )
        scores = projected_queries @ source.transpose(1, 2) * self.scores.scale
        scores = scores.view(rows, self.heads, count, -1)
        mask = context.additive_mask(scores)
        # A fully masked query outputs zero, as in the fused kernel.
        weights = torch.softmax(scores if mask is None else scores + mask, -1).nan_to_num(0.0)
        means = (weights.flatten(1, 2) @ source).view(rows, self.heads, count, -1)
        mean = torch.einsum("bhmw,hdw->bhmd", means, parts[2])
        if self.qkv_projection.bias is not None:
            offset = self.qkv_projection.bias.view(3, self.heads, 1, self.head_width)[2]
            mean = mean + offset * weights.sum(-1, keepdim=True)
        if context.disabled_heads:
            mean = zero_disabled_heads(mean, context.disabled_heads)
        return self.output(mean.transpose(1, 2).flatten(2))

    @property
    def _values_have_positions(self) -> bool:
        return isinstance(self.positions, RelativeValueEncoding)

    def _attend_fused(
        self, queries: Tensor, keys: Tensor, value_vectors: Tensor, context: LayerContext
    ) -> Tensor:
        """(B, H, Tq, D) by torch's fused kernel, which does not return the weights."""
        return F.scaled_dot_product_attention(
            queries,
            keys,
            value_vectors,
            attn_mask=context.mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=context.causal,
            scale=self.scores.scale,
            enable_gqa=keys.shape[1] != queries.shape[1],  # heads may share keys and values
        )

    def _masked_scores(
        self, queries: Tensor, keys: Tensor, context: LayerContext
    ) -> tuple[Tensor, bool]:
        """(B, H, Tq, Tk) the scores, -inf where masked, and whether there is a mask or bias."""
        positioned, context = self._with_query_positions(queries, context)
        prepared = self.scores.prepare(positioned), self.scores.prepare(keys)
        scores = prepared[0] @ prepared[1].transpose(-1, -2) * self.scores.scale
        mask = context.additive_mask(scores)
        return (scores, False) if mask is None else (scores + mask, True)

    def _weights(self, scores: Tensor, *, is_masked: bool) -> Tensor:
        """(B, H, Tq, Tk) the attention weights."""
        weights = torch.softmax(scores, -1)
        if is_masked:
            # A fully masked query outputs zero, as in the fused kernel.
            weights = weights.nan_to_num(0.0)
        return hard_attention_weights(weights) if self.scores.hard else weights

    def _apply_weights(
        self, weights: Tensor, value_vectors: Tensor, context: LayerContext
    ) -> Tensor:
        """(B, H, Tq, D) the means of the values under these weights."""
        context.capture(
            "attention",
            weights,
            ("batch", "head", "time", "source"),
            "Attention weights of each query position over the positions that it may attend to.",
            sums_to_one="source",
        )
        weights = F.dropout(weights, self.dropout, self.training)
        mean = weights @ value_vectors
        if isinstance(self.positions, RelativeValueEncoding):
            mean = mean + self.positions.read(weights, context)
        return mean


def hard_attention_weights(weights: Tensor) -> Tensor:
    """Hard attention: one-hot argmax of each row, with a straight-through gradient."""
    best = F.one_hot(weights.argmax(-1), weights.shape[-1]).to(weights)
    best = best * (weights.sum(-1, keepdim=True) > 0)
    return best + (weights - weights.detach())


def zero_disabled_heads(mean: Tensor, heads: frozenset[int]) -> Tensor:
    """(B, H, T, D) with the outputs of disabled heads set to zero."""
    enabled = torch.ones(mean.shape[1], device=mean.device, dtype=mean.dtype)
    enabled[sorted(heads)] = 0
    return mean * enabled[:, None, None]
