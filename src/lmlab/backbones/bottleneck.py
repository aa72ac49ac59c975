"""Bottleneck autoencoder: an encoder and a decoder connected by one vector only."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmlab.backbones.backbone_interfaces import (
    AutoencoderBackbone,
    LatentDecoder,
    SentenceEncoder,
)
from lmlab.core.attention_mask import FullMask
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View


class Bottleneck(AutoencoderBackbone):
    """Bottleneck autoencoder: z = encoder(s), h = decoder(z); predictions see s through z alone.

    Given a state, the decoder continues from it and the inputs are not encoded. Inputs (B, T),
    latents (B, L), hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(self, encoder: SentenceEncoder, decoder: LatentDecoder) -> None:
        super().__init__()
        assert encoder.width == decoder.latent, "the encoder gives the latent that is decoded"
        self.encoder = encoder
        self.decoder = decoder
        self.width = decoder.width

    def encode(self, view: View) -> Tensor:
        latents: Tensor = self.encoder(view.inputs, view.lengths)
        return latents

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.decoder.state_from_latents(self.encode(view)) if state is None else state
        hidden: HiddenStates = self.decoder(view, before)
        return hidden

    def capture_internals(self, view: View) -> dict[str, Capture]:
        return {
            "latents": Capture(
                values=self.encode(view),
                axes=("batch", "unit"),
                caption="The latent vector that each sentence is encoded to.",
            )
        }
