"""Encoder and decoder: a Transformer that writes one text while it looks at another."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmlab.backbones.backbone_interfaces import SourceBackbone
from lmlab.backbones.transformer import Transformer, TransformerState, positions_of
from lmlab.core.attention_mask import (
    Blind,
    Causal,
    Explicit,
    Full,
)
from lmlab.core.capture import Capture
from lmlab.core.parts import Hidden
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.attention_context import (
    Scope,
    memory_mask,
)
from lmlab.layers.transformer_block import Source


class EncoderDecoder(SourceBackbone):
    """h = Decoder(target, Encoder(source)) (Vaswani et al. 2017).

    The view is the encoder's, its `decoder` the decoder's own; hidden states are the decoder's,
    (B, T of the decoder, W). Given a state, which `begin` makes of a source, the view is of further
    inputs to the decoder.
    """

    honours: ClassVar[tuple[type, ...]] = (Causal, Full, Blind, Explicit)

    def __init__(self, encoder: Transformer, decoder: Transformer) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.width = decoder.width

    def forward(self, view: View, state: State | None = None) -> Hidden:
        if state is not None:
            return self.decoder(view, state)
        assert view.decoder is not None, "an encoder-decoder needs a view of both"
        return Hidden(values=self.decoder.read(view.decoder, source=self.encode(view)))

    def read_source(self, view: View) -> Tensor:
        return self.encode(view).values

    def begin(self, view: View) -> TransformerState:
        return self.decoder.initial_state(len(view.inputs), self.encode(view))

    def encode(self, view: View, record: dict[str, Capture] | None = None) -> Source:
        """What the encoder makes of its view, as the decoder's layers look at it."""
        values = self.encoder.read(view, record=record)
        looked_at = positions_of(view)
        asking = looked_at if view.decoder is None else positions_of(view.decoder)
        scope = Scope(
            mask=memory_mask(view.lengths, values.shape[1]),
            query_positions=asking,
            key_positions=looked_at,
        )
        return Source(values=values, scope=scope)

    def reveal(self, view: View) -> dict[str, Capture]:
        """Inner values of both, under the names `encoder …` and `decoder …`."""
        assert view.decoder is not None
        first: dict[str, Capture] = {}
        second: dict[str, Capture] = {}
        source = self.encode(view, record=first)
        noting = Source(values=source.values, scope=source.scope.recording(second))
        self.decoder.read(view.decoder, source=noting, record=second)
        return {
            **{f"encoder {name}": capture for name, capture in first.items()},
            **{f"decoder {name}": capture for name, capture in second.items()},
        }
