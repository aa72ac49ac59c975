"""Next token given an image: what an image classifier is trained for, its label being a text."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import Pieces
from lmlab.core.seeing import SeeingObjective
from lmlab.core.view import View, left_to_right
from lmlab.core.visibility import Full
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import uniform
from lmlab.objectives.given_source import NextTokenGivenSource

EMPTY = -1.0
"""The intensity of a pixel 0; that of the highest number is 1."""


class NextTokenGivenImage(NextTokenGivenSource, SeeingObjective):
    """log p(s | x) = Σ_t log p(s_t | s_<t, x), where x is an image cut into patches.

    An image comes as the text that a batch is given: side² numbers row by row, 0 to the highest of
    the vocabulary, which become intensities from -1 to 1. The view shows patches as vectors,
    (B, P, patch²) with P = (side / patch)² (Dosovitskiy et al. 2021). A text that is given nothing
    is written beside an empty image, all 0. In training each image is moved by up to `shift` pixels
    each way, at random.
    """

    intensity: Tensor

    def __init__(self, vocabulary: Vocabulary, *, side: int, patch: int, shift: int = 0) -> None:
        super().__init__(vocabulary)
        self.shift = shift
        self.side = side
        self.patch = patch
        # Saved with the weights: which id is which number, the tokeniser alone knows.
        self.register_buffer("intensity", torch.zeros(vocabulary.size))

    def meet_tokenizer(self, pieces: Pieces) -> None:
        """Learn which ids are numbers; what is none counts as half, 0."""
        words = {id: pieces.token(id) for id in range(self.vocabulary.size)}
        numbers = {id: int(word) for id, word in words.items() if word.isdecimal()}
        highest = max(numbers.values(), default=1) or 1
        self.intensity.zero_()
        for id, number in numbers.items():
            self.intensity[id] = 2 * number / highest - 1

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        pixels = self.pixels(batch.condition, len(batch), batch.tokens.device)
        if self.training and self.shift:
            pixels = moved(pixels, self.shift, generator=generator)
        return replace(image_view(pixels, self.patch), decoder=left_to_right(batch))

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        return image_view(self.pixels(condition, rows, device), self.patch)

    def pixels(self, condition: Batch | None, rows: int, device: torch.device) -> Tensor:
        """(B, side, side) intensities of what a batch is given."""
        shape = (rows, self.side, self.side)
        if condition is None:
            return torch.full(shape, EMPTY, device=device)
        return self.intensity[self._pixel_tokens(condition)].view(shape)

    def opening(self) -> tuple[int, ...]:
        # The class token, which is <s>, stands among the patches and has been read with them.
        return ()

    def _pixel_tokens(self, image: Batch) -> Tensor:
        """(B, side²) the tokens between the start and the end symbol."""
        size, vocabulary = self.side**2, self.vocabulary
        first = int(vocabulary.start is not None)
        around = first + int(vocabulary.end is not None)
        wrong = image.lengths[image.lengths != size + around]
        if len(wrong):
            raise UserError(
                f"an image is {self.side} × {self.side} = {size} numbers here, and one of "
                f"{int(wrong[0]) - around} tokens came; give images of that size, or --set side."
            )
        return image.tokens[:, first : first + size]


def image_view(pixels: Tensor, patch: int) -> View:
    """The patches of images (B, side, side), which all see each other."""
    patches = cut_into_patches(pixels, patch)
    lengths = torch.full((len(pixels),), patches.shape[1], device=pixels.device)
    return View(inputs=patches, lengths=lengths, visibility=Full())


def moved(pixels: Tensor, most: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Each image (B, side, side) moved by -most to most pixels down and across; empty comes in."""
    rows, side, _ = pixels.shape
    padded = F.pad(pixels, [most] * 4, value=EMPTY)
    drawn = uniform((2, rows), pixels.device, generator=generator)
    first = (drawn * (2 * most + 1)).long().clamp(max=2 * most)
    down, across = first[..., None] + torch.arange(side, device=pixels.device)
    row = torch.arange(rows, device=pixels.device)
    return padded[row[:, None, None], down[:, :, None], across[:, None, :]]


def cut_into_patches(pixels: Tensor, patch: int) -> Tensor:
    """(B, side, side) as (B, (side / patch)², patch²), patches and their pixels row by row."""
    rows, side, _ = pixels.shape
    count = side // patch
    tiles = pixels.view(rows, count, patch, count, patch).transpose(2, 3)
    return tiles.reshape(rows, count * count, patch * patch)
