"""Transformer encoder-decoders that also return encoder states, and with a copy pointer (PALM)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import CopyHiddenStates
from lmlab.backbones.encoder_decoder import TransformerEncoderDecoder
from lmlab.backbones.transformer import Transformer
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.pointer import CopyDistribution, Pointer


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
