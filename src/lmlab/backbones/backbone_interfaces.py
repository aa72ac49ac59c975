"""Abstract backbones: two-stream, encoder-decoder, copying, image, latent decoder, autoencoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.pointer import CopyDistribution


class TwoStreamBackbone(Backbone):
    """Two-stream backbone (XLNet): a content stream and a query stream."""

    def step(self, state: State, tokens: Tensor, segments: Tensor) -> State:
        """The state after one more content token in each row; both are (B,)."""
        raise TypeError(f"{type(self).__name__} does not define step")

    def query_next(self, state: State, segments: Tensor) -> Tensor:
        """(B, W) output of a query at the next position, of segment (B,); keeps the state."""
        raise TypeError(f"{type(self).__name__} does not define query_next")


class CopyState(State, Protocol):
    """A decoding state with a copy distribution for the next token."""

    @property
    def copy_distribution(self) -> CopyDistribution: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyHiddenStates(HiddenStates):
    """Hidden states, with the copy distribution of each position."""

    copy_distribution: CopyDistribution


class SentenceEncoder(nn.Module):
    """A sentence to one vector: tokens (B, T) and their lengths (B,) to (B, `width`)."""

    width: int
    longest: int | None = None
    """Maximum number of tokens, without <s>; None if unlimited."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define forward")


class LatentDecoder(Backbone):
    """Latent decoder: a latent vector to hidden states; the state carries the latent."""

    latent: int
    """L, the latent dimension."""
    longest: int | None = None
    """Maximum number of tokens it can generate; None if unlimited."""

    def state_from_latents(self, latents: Tensor) -> TensorState:
        """The state before the first token, for latents (B, L)."""
        raise TypeError(f"{type(self).__name__} does not define state_from_latents")

    def initial_state(self, rows: int) -> TensorState:
        """Without a given latent it is zero."""
        like = next(self.parameters())
        return self.state_from_latents(like.new_zeros(rows, self.latent))

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Internal activations, from the latent of `state` where given."""
        return {}


class AutoencoderBackbone(Backbone):
    """Autoencoder backbone: the hidden states depend on a sentence through one vector only."""

    encoder: SentenceEncoder
    decoder: LatentDecoder

    def encode(self, view: View) -> Tensor:
        """(B, L) the latent of each row."""
        raise TypeError(f"{type(self).__name__} does not define encode")


class EncoderDecoderBackbone(Backbone):
    """Encoder-decoder backbone: encodes a source; the hidden states are the decoder's."""

    def run_encoder(self, view: View) -> Tensor:
        """(B, S, W) the encoder's hidden states of a source."""
        raise TypeError(f"{type(self).__name__} does not define run_encoder")

    def init_decoder(self, view: View) -> State:
        """The decoder's state before its first input, given the source of a view."""
        raise TypeError(f"{type(self).__name__} does not define init_decoder")


class ImageTextBackbone(EncoderDecoderBackbone):
    """Image-text backbone: encodes the start token together with an image."""

    def encode_image(self, view: View) -> HiddenStates:
        """(B, 1, W) the start token's hidden state given an image, and the state after it."""
        raise TypeError(f"{type(self).__name__} does not define encode_image")

    def image_text_view(self, view: View) -> View:
        """Image and text in one row, the stack's input: <s>, the patches, the words."""
        raise TypeError(f"{type(self).__name__} does not define image_text_view")
