"""Interfaces of backbones that do more than encode a sequence: two streams, a source, copying,
latents, images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.parts import (
    Backbone,
    HiddenStates,
)
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.pointer import CopyDistribution


class TwoStreamBackbone(Backbone):
    """A backbone with a stream of queries beside its content (XLNet)."""

    def step(self, state: State, tokens: Tensor, segments: Tensor) -> State:
        """The state after one more token of content in each row; both are (B,)."""
        raise TypeError(f"{type(self).__name__} does not define step")

    def query_next(self, state: State, segments: Tensor) -> Tensor:
        """(B, W) what a query at the next place, of a segment (B,), finds; the state stays."""
        raise TypeError(f"{type(self).__name__} does not define ask")


class CopyState(State, Protocol):
    """A state that knows what may be copied next."""

    @property
    def copy_distribution(self) -> CopyDistribution: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyHiddenStates(HiddenStates):
    """Hidden states, and what each place would copy."""

    copy_distribution: CopyDistribution


class SentenceEncoder(nn.Module):
    """A sentence to one vector: tokens (B, T) and their lengths (B,) to (B, `width`)."""

    width: int
    longest: int | None = None
    """Most tokens that it can read, <s> not counted; None where there is no limit."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")


class LatentDecoder(Backbone):
    """A latent vector to hidden states, place after place; the latent travels in the state."""

    latent: int
    """L, the numbers of a latent."""
    longest: int | None = None
    """Most tokens that it can write; None where there is no limit."""

    def state_from_latents(self, latents: Tensor) -> TensorState:
        """The state before the first token, for latents (B, L)."""
        raise TypeError(f"{type(self).__name__} does not define state_given")

    def initial_state(self, rows: int) -> TensorState:
        """Where no latent is given it is zero."""
        like = next(self.parameters())
        return self.state_from_latents(like.new_zeros(rows, self.latent))

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Inner values worth a picture, from the latent of `state` where it is given."""
        return {}


class AutoencoderBackbone(Backbone):
    """A backbone that sees a sentence through one vector alone."""

    encoder: SentenceEncoder
    decoder: LatentDecoder

    def encode(self, view: View) -> Tensor:
        """(B, L) the latent of each row."""
        raise TypeError(f"{type(self).__name__} does not define encode")


class EncoderDecoderBackbone(Backbone):
    """A backbone that reads a source and writes beside it; its hidden states are the writer's."""

    def run_encoder(self, view: View) -> Tensor:
        """(B, S, W) what the encoder makes of a source."""
        raise TypeError(f"{type(self).__name__} does not define read_source")

    def init_decoder(self, view: View) -> State:
        """The decoder's state before its first input, for the source that a view shows."""
        raise TypeError(f"{type(self).__name__} does not define begin")


class ImageTextBackbone(EncoderDecoderBackbone):
    """A backbone that reads the start symbol together with an image."""

    def encode_image(self, view: View) -> HiddenStates:
        """(B, 1, W) the start symbol's hidden state beside an image, and the state after it."""
        raise TypeError(f"{type(self).__name__} does not define opened")

    def image_text_view(self, view: View) -> View:
        """Image and text in one row, as the stack reads them: <s>, the patches, the words."""
        raise TypeError(f"{type(self).__name__} does not define joined")
