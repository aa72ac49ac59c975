"""RNN encoder-decoder (seq2seq): stacked recurrent encoder, joined with any RNN decoder."""

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
        assert not backwards or len(backwards) == len(forwards), "as many layers per direction"
        self.embedding = embedding
        self.forwards = nn.ModuleList(forwards)
        self.backwards = nn.ModuleList(backwards)
        self.dropout = nn.Dropout(dropout)
        self.reversed = reversed_
        self.width = sum(cells[-1].width for cells in (forwards, backwards) if cells)

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, list[CellState]]:
        values, states = self.embedding(tokens), []
        if self.reversed:
            values = reverse_padded(values, lengths)
        for layer in range(len(self.forwards)):
            values, state = self._layer(layer, self.dropout(values), lengths)
            states.append(state)
        return (reverse_padded(values, lengths) if self.reversed else values), states

    def _layer(self, layer: int, values: Tensor, lengths: Tensor) -> tuple[Tensor, CellState]:
        forward_cell = self.forwards[layer]
        assert isinstance(forward_cell, RecurrentCell)
        outputs, state = forward_cell.read(values, lengths)
        if not self.backwards:
            return outputs, state
        backward_cell = self.backwards[layer]
        assert isinstance(backward_cell, RecurrentCell)
        backward_outputs, backward_state = backward_cell.read(
            reverse_padded(values, lengths), lengths
        )
        joint_state = tuple(
            torch.cat(parts, -1) for parts in zip(state, backward_state, strict=True)
        )
        return torch.cat([outputs, reverse_padded(backward_outputs, lengths)], -1), joint_state


def reverse_padded(values: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row (B, T, W) up to its length; padding stays in place."""
    position = torch.arange(values.shape[1], device=values.device)
    mirrored = lengths[:, None] - 1 - position
    index = torch.where(mirrored >= 0, mirrored, position)
    return values.gather(1, index[..., None].expand_as(values))


class RNNEncoderDecoder(EncoderDecoderBackbone):
    """RNN seq2seq: h = Decoder(target, Encoder(source)) (Sutskever et al. 2014; Cho et al. 2014).

    The view is the encoder's, its `decoder` the decoder's own; hidden states are the decoder's.
    Given a state, which `init_decoder` makes from a source, the view holds further decoder inputs.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask)

    def __init__(self, encoder: RNNEncoder, decoder: RNNDecoder) -> None:
        super().__init__()
        assert encoder.width == decoder.width, "encoder and decoder need the same width"
        self.encoder = encoder
        self.decoder = decoder
        self.width = decoder.width

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if state is None:
            assert view.decoder is not None, "an encoder-decoder needs a view of both sides"
            state, view = self.init_decoder(view), view.decoder
        assert isinstance(state, TensorState)
        values, after = self.decoder(view.inputs, state)
        return HiddenStates(values=values, state=after)

    def run_encoder(self, view: View) -> Tensor:
        values: Tensor = self.encoder(view.inputs, view.lengths)[0]
        return values

    def init_decoder(self, view: View) -> TensorState:
        values, encoder_states = self.encoder(view.inputs, view.lengths)
        return self.decoder.begin(values, view.lengths, encoder_states)

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
