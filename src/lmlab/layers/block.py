"""Block: a sequence mixer, then cross-attention and a feed-forward layer if any, each connected.

A `SublayerConnection` says where norm and dropout are, and whether there is a residual.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from lmlab.core.state import State
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.kv_cache import CrossAttentionCache, SourceAssignment
from lmlab.layers.sequence_mixer import CausalMixer, LayerContext, SequenceMixer


class SublayerConnection(nn.Module, ABC):
    """How a sublayer f is connected: where norm and dropout are, and whether there is a residual.

    Values (…, W); what f gets is `sublayer_input`, what follows it is `sublayer_output`.
    """

    has_residual: ClassVar[bool] = True
    """Whether the output of f is added to its input."""

    @abstractmethod
    def sublayer_input(self, values: Tensor) -> Tensor:
        """The input of the sublayer."""

    @abstractmethod
    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        """The values after the sublayer, from those before it and the sublayer's output."""


class PreNorm(SublayerConnection):
    """Pre-norm x + f(norm(x)): an identity path through all layers (GPT-2, T5, PEGASUS)."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, values: Tensor) -> Tensor:
        return self.norm(values)

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        return values + self.dropout(output)


class PostNorm(SublayerConnection):
    """Post-norm norm(x + f(x)): Vaswani et al. 2017, BERT, BART, XLNet."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, values: Tensor) -> Tensor:
        return values

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        return self.norm(values + self.dropout(output))


class NoResidual(SublayerConnection):
    """f(dropout(x)), without norm and residual: stacked recurrent cells (Zaremba et al. 2014)."""

    has_residual = False

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, values: Tensor) -> Tensor:
        # A call of the module costs as much as a gate of a small cell, in every step of decoding.
        return self.dropout(values) if self.training else values

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        return output


class NormedReLU(SublayerConnection):
    """norm(relu(f(x))), without a residual connection: Star-Transformer (Guo et al. 2019)."""

    has_residual = False

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def sublayer_input(self, values: Tensor) -> Tensor:
        return values

    def sublayer_output(self, values: Tensor, output: Tensor) -> Tensor:
        return self.norm(self.dropout(output).relu())


@dataclass(frozen=True, eq=False)
class BlockState:
    """State of one block: its mixer's, and the cached source if it has cross-attention."""

    mixer: State
    source: CrossAttentionCache | None = None

    def select(self, rows: Tensor) -> BlockState:
        source = None if self.source is None else self.source.select(rows)
        return BlockState(self.mixer.select(rows), source)

    def detach(self) -> BlockState:
        return BlockState(
            self.mixer.detach(), None if self.source is None else self.source.detach()
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossAttentionSource:
    """Encoder output that a decoder's layers attend to, with its mask."""

    values: Tensor
    """(B, S, W)"""
    context: LayerContext


class Block(nn.Module):
    """mixer → (cross-attention) → (feed-forward), each with its `SublayerConnection`.

    Values (B, T, W) to the same shape. With attention as the mixer, pre- or post-norm connections
    and a feed-forward layer it is a Transformer layer; with a recurrent cell and `NoResidual`, a
    layer of a stacked RNN. Sublayer outputs are captured by name if requested.
    """

    def __init__(
        self,
        mixer: SequenceMixer,
        mixer_connection: SublayerConnection,
        feed_forward: FeedForward | None = None,
        feed_forward_connection: SublayerConnection | None = None,
        *,
        cross_attention: MultiHeadAttention | None = None,
        cross_attention_connection: SublayerConnection | None = None,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_connection = mixer_connection
        self.cross_attention = cross_attention
        self.cross_attention_connection = cross_attention_connection
        self.feed_forward = feed_forward
        self.feed_forward_connection = feed_forward_connection

    def forward(
        self,
        values: Tensor,
        context: LayerContext,
        *,
        content: Tensor | None = None,
        source: CrossAttentionSource | None = None,
        projected: Tensor | None = None,
    ) -> Tensor:
        """The whole sequence at once.

        Only if the mixer is attention: keys and values are of `content` (B, Tk, W) if it is given
        (a memory before the values, another stream); `projected` is the output of `project`, if at
        hand.
        """
        connection = self.mixer_connection
        inputs = connection.sublayer_input(values)
        if content is None and projected is None:
            output = self.mixer(inputs, context)
        else:
            keyed = None if content is None else connection.sublayer_input(content)
            output = self.attention(inputs, context, source=keyed, projected=projected)
        self._capture_output(f"{self.mixer.kind} output", output, context, connection)
        values = connection.sublayer_output(values, output)
        if source is not None:
            values = self._cross_attend(values, context, source)
        return self._apply_feed_forward(values, context)

    @property
    def attention(self) -> MultiHeadAttention:
        """The mixer, where it must be attention."""
        assert isinstance(self.mixer, MultiHeadAttention), "only attention has queries and keys"
        return self.mixer

    def project(self, values: Tensor) -> Tensor:
        """(…, 3 · H · D) the concatenated queries, keys and values of self-attention."""
        return self.attention.qkv_projection(self.mixer_connection.sublayer_input(values))

    def share_layers(self, other: Block) -> None:
        """Use the mixer and feed-forward layer of another block, with their connections."""
        self.mixer, self.mixer_connection = other.mixer, other.mixer_connection
        self.feed_forward = other.feed_forward
        self.feed_forward_connection = other.feed_forward_connection

    # Step by step -------------------------------------------------------------------------------

    def step(
        self,
        values: Tensor,
        context: LayerContext,
        state: BlockState,
        source_context: LayerContext | None = None,
    ) -> tuple[Tensor, BlockState]:
        """New positions (B, new, W) after those of the state, and the state after them."""
        connection, mixer = self.mixer_connection, self.mixer
        assert isinstance(mixer, CausalMixer), f"{type(mixer).__name__} needs the whole sequence"
        output, after = mixer.step(connection.sublayer_input(values), context, state.mixer)
        self._capture_output(f"{mixer.kind} output", output, context, connection)
        values = connection.sublayer_output(values, output)
        if state.source is not None:
            assert self.cross_attention is not None and source_context is not None
            assert self.cross_attention_connection is not None
            connection = self.cross_attention_connection
            queries = connection.sublayer_input(values)
            output = self.cross_attention.cross_attend(queries, source_context, state.source)
            values = connection.sublayer_output(values, output)
        return self._apply_feed_forward(values, context), BlockState(after, state.source)

    def query(self, values: Tensor, context: LayerContext, state: BlockState) -> Tensor:
        """(B, new, W) queries that attend to the positions of a state and leave it unchanged."""
        connection = self.mixer_connection
        output = self.attention.attend_to_cache(
            connection.sublayer_input(values), context, state.mixer
        )
        return self._apply_feed_forward(connection.sublayer_output(values, output), context)

    def initial_state(
        self,
        rows: int,
        like: Tensor,
        source: CrossAttentionSource | None = None,
        assignment: SourceAssignment | None = None,
    ) -> BlockState:
        """The initial state; the source `assignment` is shared by all layers."""
        mixer = self.mixer
        assert isinstance(mixer, CausalMixer), f"{type(mixer).__name__} needs the whole sequence"
        state = mixer.initial_state(rows, like)
        if source is None:
            return BlockState(state)
        assert self.cross_attention is not None and assignment is not None
        keys_values = self.cross_attention.keys_values(source.values, source.context.key_positions)
        return BlockState(state, CrossAttentionCache.of(*keys_values, assignment))

    # Sublayers ----------------------------------------------------------------------------------

    def _cross_attend(
        self, values: Tensor, context: LayerContext, source: CrossAttentionSource
    ) -> Tensor:
        connection = self.cross_attention_connection
        assert self.cross_attention is not None and connection is not None
        queries = connection.sublayer_input(values)
        source_context = source.context.for_layer(f"{context.name} source")
        output = self.cross_attention(queries, source_context, source=source.values)
        self._capture_output("source attention output", output, context, connection)
        return connection.sublayer_output(values, output)

    def _apply_feed_forward(self, values: Tensor, context: LayerContext) -> Tensor:
        if self.feed_forward is None:
            return values
        connection = self.feed_forward_connection
        assert connection is not None
        output = self.feed_forward(connection.sublayer_input(values))
        self._capture_output("feed-forward output", output, context, connection)
        return connection.sublayer_output(values, output)

    @staticmethod
    def _capture_output(
        name: str, output: Tensor, context: LayerContext, connection: SublayerConnection
    ) -> None:
        """Capture what a sublayer adds; without a residual connection nothing is added."""
        if context.record is not None and connection.has_residual:
            part = name.removesuffix(" output")
            caption = f"What the {part} adds to each position, unit by unit."
            context.capture(name, output, ("batch", "time", "unit"), caption)
