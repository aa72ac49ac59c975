"""Transformer encoder-decoder: the decoder attends to the encoded source by cross-attention."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmlab.backbones.backbone_interfaces import EncoderDecoderBackbone
from lmlab.backbones.transformer import Transformer, TransformerState, position_ids
from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask, NoContextMask
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.attention_context import AttentionContext, source_padding_mask
from lmlab.layers.transformer_block import CrossAttentionSource


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
        scope = AttentionContext(
            mask=source_padding_mask(view.lengths, values.shape[1]),
            query_positions=asking,
            key_positions=looked_at,
        )
        return CrossAttentionSource(values=values, scope=scope)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Internals of both, under the names `encoder …` and `decoder …`."""
        assert view.decoder is not None
        first: dict[str, Capture] = {}
        second: dict[str, Capture] = {}
        source = self.encode(view, record=first)
        noting = CrossAttentionSource(
            values=source.values, scope=source.scope.with_captures(second)
        )
        self.decoder.read(view.decoder, source=noting, record=second)
        return {
            **{f"encoder {name}": capture for name, capture in first.items()},
            **{f"decoder {name}": capture for name, capture in second.items()},
        }
