"""Bottleneck: an encoder and a decoder with nothing between them but one vector."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmlab.backbones.backbone_interfaces import (
    Compression,
    Decoder,
    Encoder,
)
from lmlab.core.attention_mask import Full
from lmlab.core.capture import Capture
from lmlab.core.parts import Hidden
from lmlab.core.state import State
from lmlab.core.view import View


class Bottleneck(Compression):
    """z = encoder(s), h = decoder(z): all that a prediction knows of the sentence is in z.

    Where a state is given the decoder goes on from it, and the inputs are not read. Inputs (B, T),
    latents (B, L), hidden (B, T, W).
    """

    honours: ClassVar[tuple[type, ...]] = (Full,)

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        assert encoder.width == decoder.latent, "the encoder gives the latent that is decoded"
        self.encoder = encoder
        self.decoder = decoder
        self.width = decoder.width

    def encode(self, view: View) -> Tensor:
        latents: Tensor = self.encoder(view.inputs, view.lengths)
        return latents

    def forward(self, view: View, state: State | None = None) -> Hidden:
        before = self.decoder.state_given(self.encode(view)) if state is None else state
        hidden: Hidden = self.decoder(view, before)
        return hidden

    def reveal(self, view: View) -> dict[str, Capture]:
        return {
            "latents": Capture(
                values=self.encode(view),
                axes=("batch", "unit"),
                reading="The latent vector that each sentence is encoded to.",
            )
        }
