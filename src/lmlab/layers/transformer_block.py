"""Transformer block: self-attention, optional cross-attention, FFN; pre- or post-norm; cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.attention_context import AttentionContext
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.kv_cache import CrossAttentionCache, KVCache, SourceAssignment


class ResidualConnection(nn.Module):
    """Residual connection around a sublayer f, with layer norm and dropout."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, values: Tensor) -> Tensor:
        """The input of the sublayer."""
        return values

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        """The sum of the values and the sublayer's output, normalised if post-norm."""
        raise TypeError(f"{type(self).__name__} does not define sublayer_output")


class PreNorm(ResidualConnection):
    """Pre-norm x + f(norm(x)): an identity path through all layers (GPT-2, T5, PEGASUS)."""

    def sublayer_input(self, values: Tensor) -> Tensor:
        return self.norm(values)

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        return values + self.dropout(output)


class PostNorm(ResidualConnection):
    """Post-norm norm(x + f(x)): Vaswani et al. 2017, BERT, BART, XLNet."""

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        return self.norm(values + self.dropout(output))


@dataclass(frozen=True, eq=False)
class BlockCache:
    """Cache of one layer: self-attention, and cross-attention if it has a source."""

    self_attention_cache: KVCache
    source: CrossAttentionCache | None = None

    def select(self, rows: Tensor) -> BlockCache:
        source = None if self.source is None else self.source.select(rows)
        return BlockCache(self.self_attention_cache.select(rows), source)

    def detach(self) -> BlockCache:
        return BlockCache(
            self.self_attention_cache.detach(),
            None if self.source is None else self.source.detach(),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossAttentionSource:
    """Encoder output that a decoder's layers attend to, with its mask."""

    values: Tensor
    """(B, S, W)"""
    scope: AttentionContext


class TransformerBlock(nn.Module):
    """self-attention → (cross-attention) → feed-forward, a residual connection around each.

    Values (B, T, W) to the same shape. Sublayer outputs are captured by name if requested.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        self_attention_residual: ResidualConnection,
        feed_forward_residual: ResidualConnection,
        *,
        cross_attention: MultiHeadAttention | None = None,
        cross_attention_residual: ResidualConnection | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.self_attention_residual = self_attention_residual
        self.cross_attention = cross_attention
        self.cross_attention_residual = cross_attention_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual

    def forward(
        self,
        values: Tensor,
        scope: AttentionContext,
        *,
        content: Tensor | None = None,
        source: CrossAttentionSource | None = None,
        projected: Tensor | None = None,
    ) -> Tensor:
        """One pass; keys and values are of `content` (B, Tk, W) if it is another stream.

        `projected` is the output of `project`, if at hand.
        """
        residual = self.self_attention_residual
        content_input = None if content is None else residual.sublayer_input(content)
        output = self.attention(
            residual.sublayer_input(values), scope, source=content_input, projected=projected
        )
        values = residual.sublayer_output(
            values, self._capture_output("attention output", output, scope)
        )
        if source is not None:
            assert self.cross_attention is not None and self.cross_attention_residual is not None
            queries = self.cross_attention_residual.sublayer_input(values)
            source_scope = source.scope.for_layer(f"{scope.name} source")
            output = self.cross_attention(queries, source_scope, source=source.values)
            recorded = self._capture_output("source attention output", output, scope)
            values = self.cross_attention_residual.sublayer_output(values, recorded)
        return self._apply_feed_forward(values, scope)

    def project(self, values: Tensor) -> Tensor:
        """(…, 3 · H · D) the concatenated queries, keys and values of self-attention."""
        return self.attention.qkv_projection(self.self_attention_residual.sublayer_input(values))

    def step(
        self,
        values: Tensor,
        scope: AttentionContext,
        cache: BlockCache,
        positions: Tensor,
        source_scope: AttentionContext | None = None,
    ) -> tuple[Tensor, BlockCache]:
        """Incremental pass for new positions (B, new, W) at `positions`, and the new cache."""
        residual = self.self_attention_residual
        output, self_cache = self.attention.step(
            residual.sublayer_input(values), scope, cache.self_attention_cache, positions
        )
        values = residual.sublayer_output(values, output)
        if cache.source is not None:
            assert self.cross_attention is not None and self.cross_attention_residual is not None
            assert source_scope is not None
            queries = self.cross_attention_residual.sublayer_input(values)
            output = self.cross_attention.cross_attend(queries, source_scope, cache.source)
            values = self.cross_attention_residual.sublayer_output(values, output)
        return self._apply_feed_forward(values, scope), BlockCache(self_cache, cache.source)

    def initial_cache(
        self,
        rows: int,
        source: CrossAttentionSource | None = None,
        assignment: SourceAssignment | None = None,
    ) -> BlockCache:
        """The initial cache; the source `assignment` is shared by all layers."""
        attention = self.attention
        like = attention.qkv_projection.weight
        self_cache = KVCache.empty(rows, attention.heads, attention.head_width, like)
        if source is None:
            return BlockCache(self_cache)
        assert self.cross_attention is not None and assignment is not None
        keys_values = self.cross_attention.keys_values(source.values, source.scope.key_positions)
        return BlockCache(self_cache, CrossAttentionCache.of(*keys_values, assignment))

    def _apply_feed_forward(self, values: Tensor, scope: AttentionContext) -> Tensor:
        residual = self.feed_forward_residual
        output = self.feed_forward(residual.sublayer_input(values))
        return residual.sublayer_output(
            values, self._capture_output("feed-forward output", output, scope)
        )

    @staticmethod
    def _capture_output(name: str, output: Tensor, scope: AttentionContext) -> Tensor:
        caption = f"What the {name.removesuffix(' output')} adds to each position, unit by unit."
        scope.capture(name, output, ("batch", "time", "unit"), caption)
        return output
