"""Abstract backbones: two-stream, encoder-decoder, copying, image, latent decoder, autoencoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

    @abstractmethod
    def step(self, state: State, tokens: Tensor, segments: Tensor) -> State:
        """The state after one more content token in each row; both are (B,)."""

    @abstractmethod
    def query_next(self, state: State, segments: Tensor) -> Tensor:
        """(B, W) output of a query at the next position, of segment (B,); keeps the state."""


class CopyState(State, Protocol):
    """A decoding state with a copy distribution for the next token."""

    @property
    def copy_distribution(self) -> CopyDistribution: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyHiddenStates(HiddenStates):
    """Hidden states, with the copy distribution of each position."""

    copy_distribution: CopyDistribution


class SentenceEncoder(nn.Module, ABC):
    """A sentence to one vector: tokens (B, T) and their lengths (B,) to (B, `width`)."""

    width: int
    longest: int | None = None
    """Maximum number of tokens, without <s>; None if unlimited."""

    @abstractmethod
    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, W) the vectors of sentences (B, T)."""


class LatentDecoder(Backbone):
    """Latent decoder: a latent vector to hidden states; the state carries the latent."""

    latent: int
    """L, the latent dimension."""
    longest: int | None = None
    """Maximum number of tokens it can generate; None if unlimited."""

    @abstractmethod
    def state_from_latents(self, latents: Tensor) -> TensorState:
        """The state before the first token, for latents (B, L)."""

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

    @abstractmethod
    def encode(self, view: View) -> Tensor:
        """(B, L) the latent of each row."""


class EncoderDecoderBackbone(Backbone):
    """Encoder-decoder backbone: encodes a source; the hidden states are the decoder's."""

    @abstractmethod
    def run_encoder(self, view: View) -> Tensor:
        """(B, S, W) the encoder's hidden states of a source."""

    @abstractmethod
    def init_decoder(self, view: View) -> State:
        """The decoder's state before its first input, given the source of a view."""


class ImageTextBackbone(Backbone):
    """Image-text backbone: encodes the start token together with an image."""

    @abstractmethod
    def encode_image(self, view: View) -> HiddenStates:
        """(B, 1, W) the start token's hidden state given an image, and the state after it."""

    @abstractmethod
    def image_text_view(self, view: View) -> View:
        """Image and text in one row, the stack's input: <s>, the patches, the words."""
