"""Transformer encoder-decoders: by cross-attention, also with encoder states or a copy pointer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import CopyHiddenStates, EncoderDecoderBackbone
from lmlab.backbones.transformer import Transformer, TransformerState, position_ids
from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask, NoContextMask
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.block import CrossAttentionSource
from lmlab.layers.pointer import CopyDistribution, Pointer
from lmlab.layers.sequence_mixer import LayerContext, source_padding_mask


class TransformerEncoderDecoder(EncoderDecoderBackbone):
    """Transformer encoder-decoder: h = Decoder(target, Encoder(source)) (Vaswani et al. 2017).

    The view is the encoder's, its `decoder` the decoder's own; hidden states are the decoder's, (B,
    T of the decoder, W). Given a state, which `init_decoder` makes from a source, the view holds
    further inputs to the decoder.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (
        CausalMask,
        FullMask,
        NoContextMask,
        ExplicitMask,
    )

    def __init__(self, encoder: Transformer, decoder: Transformer) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.width = decoder.width
        self.max_positions = encoder.max_positions

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if state is not None:
            return self.decoder(view, state)
        assert view.decoder is not None, "an encoder-decoder needs a view of both"
        return HiddenStates(values=self.decoder.read(view.decoder, source=self.encode(view)))

    def run_encoder(self, view: View) -> Tensor:
        return self.encode(view).values

    def init_decoder(self, view: View) -> TransformerState:
        return self.decoder.initial_state(len(view.inputs), self.encode(view))

    def encode(self, view: View, record: dict[str, Capture] | None = None) -> CrossAttentionSource:
        """The encoder's output, as the source of the decoder's cross-attention."""
        values = self.encoder.read(view, record=record)
        looked_at = position_ids(view)
        asking = looked_at if view.decoder is None else position_ids(view.decoder)
        context = LayerContext(
            mask=source_padding_mask(view.lengths, values.shape[1]),
            query_positions=asking,
            key_positions=looked_at,
        )
        return CrossAttentionSource(values=values, context=context)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Internals of both, under the names `encoder …` and `decoder …`."""
        assert view.decoder is not None
        first: dict[str, Capture] = {}
        second: dict[str, Capture] = {}
        source = self.encode(view, record=first)
        noting = CrossAttentionSource(
            values=source.values, context=source.context.with_captures(second)
        )
        self.decoder.read(view.decoder, source=noting, record=second)
        return {
            **{f"encoder {name}": capture for name, capture in first.items()},
            **{f"decoder {name}": capture for name, capture in second.items()},
        }


class TwoOutputEncoderDecoder(TransformerEncoderDecoder):
    """Encoder-decoder that also returns its encoder's hidden states.

    For objectives that predict on both sides (PALM); the source is encoded once.
    """

    def decoder_and_encoder_hidden(self, view: View) -> tuple[HiddenStates, Tensor]:
        """The decoder's hidden states (B, T, W), and the encoder's (B, S, W)."""
        assert view.decoder is not None
        source = self.encode(view)
        return HiddenStates(values=self.decoder.read(view.decoder, source=source)), source.values


@dataclass(frozen=True, kw_only=True, eq=False)
class PointerState:
    """A decoder's state with the source that it copies from."""

    decoder_state: State
    read: Tensor
    """(B, S, W) the encoded source."""
    source: Tensor
    """(B, S) its tokens."""
    copyable: Tensor
    """(B, S) bool: tokens that may be copied."""
    copy_distribution: CopyDistribution
    """The copy distribution of the next token; empty before the first input."""

    def select(self, rows: Tensor) -> PointerState:
        return PointerState(
            decoder_state=self.decoder_state.select(rows),
            read=self.read[rows],
            source=self.source[rows],
            copyable=self.copyable[rows],
            copy_distribution=self.copy_distribution.select(rows),
        )

    def detach(self) -> PointerState:
        return replace(
            self,
            decoder_state=self.decoder_state.detach(),
            read=self.read.detach(),
            copy_distribution=self.copy_distribution.detach(),
        )


class PointerEncoderDecoder(TwoOutputEncoderDecoder):
    """Encoder-decoder with a copy pointer over the source (PALM, Bi et al. 2020).

    Words can be copied, special tokens cannot. Cost: one more attention head.
    """

    never_copied: Tensor

    def __init__(
        self, encoder: Transformer, decoder: Transformer, pointer: Pointer, vocabulary: Vocabulary
    ) -> None:
        super().__init__(encoder, decoder)
        self.pointer = pointer
        symbols = [*vocabulary.unpredictable, *([] if vocabulary.end is None else [vocabulary.end])]
        self.register_buffer("never_copied", torch.tensor(symbols), persistent=False)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if state is None:
            return self.decoder_and_encoder_hidden(view)[0]
        assert isinstance(state, PointerState)
        hidden = self.decoder(view, state.decoder_state)
        assert hidden.state is not None
        copies = self.pointer(hidden.values, state.read, state.source, state.copyable)
        after = replace(state, decoder_state=hidden.state, copy_distribution=copies)
        return CopyHiddenStates(values=hidden.values, copy_distribution=copies, state=after)

    def decoder_and_encoder_hidden(self, view: View) -> tuple[HiddenStates, Tensor]:
        hidden, encoded = super().decoder_and_encoder_hidden(view)
        copies = self.pointer(hidden.values, encoded, view.inputs, self.copyable(view))
        return CopyHiddenStates(values=hidden.values, copy_distribution=copies), encoded

    def init_decoder(self, view: View) -> PointerState:  # type: ignore[override]
        source = self.encode(view)
        inner = self.decoder.initial_state(len(view.inputs), source)
        copyable, empty = self.copyable(view), source.values[:, :0]
        return PointerState(
            decoder_state=inner,
            read=source.values,
            source=view.inputs,
            copyable=copyable,
            copy_distribution=self.pointer(empty, source.values, view.inputs, copyable),
        )

    def copyable(self, view: View) -> Tensor:
        """(B, S) bool: the words of a source."""
        position = torch.arange(view.inputs.shape[1], device=view.inputs.device)
        return (position < view.lengths[:, None]) & ~torch.isin(view.inputs, self.never_copied)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        hidden, _ = self.decoder_and_encoder_hidden(view)
        assert isinstance(hidden, CopyHiddenStates) and isinstance(
            hidden.copy_distribution, CopyDistribution
        )
        copied = Capture(
            values=hidden.copy_distribution.copy_probs.detach(),
            axes=("batch", "time", "source"),
            caption="For each output token, the probability that it is a copy of each source "
            "token; what is missing to 1 is the probability that it was generated.",
            bounds=UNIT_INTERVAL,
        )
        return {**super().capture_internals(view), "copied": copied}
