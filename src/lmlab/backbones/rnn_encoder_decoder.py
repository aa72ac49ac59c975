"""RNN encoder-decoder (seq2seq): a recurrent encoder and a recurrent decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import EncoderDecoderBackbone
from lmlab.backbones.rnn_decoders import AttentionDecoder, RNNDecoder
from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.recurrent_cells import CellState, RecurrentCell


class RNNEncoder(nn.Module):
    """Stacked cells over a source: hidden states of all positions, and the last states.

    `reversed_` encodes from the end (Sutskever et al. 2014). With `backwards`, one more cell per
    layer, every layer is bidirectional and concatenates its two halves (Schuster and Paliwal 1997).
    Tokens (B, S) to (B, S, W) and, for each layer, a state of W.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        forwards: Sequence[RecurrentCell],
        backwards: Sequence[RecurrentCell] = (),
        *,
        dropout: float = 0.0,
        reversed_: bool = False,
    ) -> None:
        super().__init__()
        assert not backwards or len(backwards) == len(forwards), "as many layers each way"
        self.embedding = embedding
        self.forwards = nn.ModuleList(forwards)
        self.backwards = nn.ModuleList(backwards)
        self.dropout = nn.Dropout(dropout)
        self.reversed = reversed_
        self.width = sum(cells[-1].width for cells in (forwards, backwards) if cells)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, list[CellState]]:
        values, last = self.embedding(tokens), []
        if self.reversed:
            values = reverse_padded(values, lengths)
        for layer in range(len(self.forwards)):
            values, state = self._layer(layer, self.dropout(values), lengths)
            last.append(state)
        return (reverse_padded(values, lengths) if self.reversed else values), last

    def _layer(self, layer: int, values: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        there = self.forwards[layer]
        assert isinstance(there, RecurrentCell)
        outputs, state = there.read(values, lengths)
        if not self.backwards:
            return outputs, state
        back = self.backwards[layer]
        assert isinstance(back, RecurrentCell)
        found, other = back.read(reverse_padded(values, lengths), lengths)
        both = tuple(torch.cat(parts, -1) for parts in zip(state, other, strict=True))
        return torch.cat([outputs, reverse_padded(found, lengths)], -1), both


def reverse_padded(values: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row (B, T, W) up to its length; padding stays in place."""
    place = torch.arange(values.shape[1], device=values.device)
    mirrored = lengths[:, None] - 1 - place
    index = torch.where(mirrored >= 0, mirrored, place)
    return values.gather(1, index[..., None].expand_as(values))


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
