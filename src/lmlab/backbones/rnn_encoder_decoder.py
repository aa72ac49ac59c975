"""RNN encoder-decoder (seq2seq): a recurrent encoder and a recurrent decoder."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmlab.backbones.backbone_interfaces import EncoderDecoderBackbone
from lmlab.backbones.rnn_decoders import (
    AttentionDecoder,
    RNNDecoder,
)
from lmlab.backbones.rnn_encoder import RNNEncoder
from lmlab.core.attention_mask import (
    CausalMask,
    FullMask,
)
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View


class RNNEncoderDecoder(EncoderDecoderBackbone):
    """RNN seq2seq: h = Decoder(target, Encoder(source)) (Sutskever et al. 2014; Cho et al. 2014).

    The view is the encoder's, its `decoder` the decoder's own; hidden states are the decoder's.
    Given a state, which `init_decoder` makes from a source, the view holds further decoder inputs.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask)

    def __init__(self, reader: RNNEncoder, writer: RNNDecoder) -> None:
        super().__init__()
        assert reader.width == writer.width, "the writer begins where the reader ends"
        self.encoder = reader
        self.decoder = writer
        self.width = writer.width

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if state is None:
            assert view.decoder is not None, "a reader and a writer need a view of both"
            state, view = self.init_decoder(view), view.decoder
        assert isinstance(state, TensorState)
        values, after = self.decoder(view.inputs, state)
        return HiddenStates(values=values, state=after)

    def run_encoder(self, view: View) -> Tensor:
        values: Tensor = self.encoder(view.inputs, view.lengths)[0]
        return values

    def init_decoder(self, view: View) -> TensorState:
        values, last = self.encoder(view.inputs, view.lengths)
        return self.decoder.begin(values, view.lengths, last)

    def free_state_widths(self) -> dict[str, int]:
        """Tensors of the decoder's initial state that a latent variable may shift, with widths."""
        return self.decoder.free_state_widths()

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """The decoder's attention over the source, if it has any."""
        if not isinstance(self.decoder, AttentionDecoder) or view.decoder is None:
            return {}
        _, weights, _ = self.decoder.decode_with_attention(
            view.decoder.inputs, self.init_decoder(view)
        )
        return {
            "attention": Capture(
                values=weights,
                axes=("batch", "time", "source"),
                caption="How each output token divides its attention over the source tokens.",
                sums_to_one="source",
            )
        }
