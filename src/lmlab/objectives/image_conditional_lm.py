"""Next token given an image: what an image classifier is trained for, its label being a text."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.integer_parsing import parse_integer
from lmlab.core.protocols import TokenizerProtocol
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.conditional_lm import ConditionalLM
from lmlab.objectives.objective_interfaces import ImageTextObjective

BACKGROUND_INTENSITY = -1.0
"""The intensity of a pixel 0; that of the highest number is 1."""


class ImageConditionalLM(ConditionalLM, ImageTextObjective):
    """log p(s | x) = Σ_t log p(s_t | s_<t, x), where x is an image cut into patches.

    An image comes as the text that a batch is given: side² numbers row by row, 0 to the highest of
    the vocabulary, which become intensities from -1 to 1. The view shows patches as vectors,
    (B, P, patch²) with P = (side / patch)² (Dosovitskiy et al. 2021). A text that is given nothing
    is written beside an empty image, all 0.
    """

    intensity: Tensor

    def __init__(self, vocabulary: Vocabulary, *, side: int, patch: int) -> None:
        super().__init__(vocabulary)
        self.image_size = side
        self.patch = patch
        # Saved with the weights: which id is which number, the tokeniser alone knows.
        self.register_buffer("intensity", torch.zeros(vocabulary.size))

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        """Learn which ids are numbers; what is none counts as half, 0."""
        words = {id: pieces.token(id) for id in range(self.vocabulary.size)}
        spelled = {id: parse_integer(word) for id, word in words.items()}
        numbers = {id: number for id, number in spelled.items() if number is not None}
        highest = max(numbers.values(), default=1) or 1
        self.intensity.zero_()
        for id, number in numbers.items():
            self.intensity[id] = 2 * number / highest - 1

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        shape = (rows, self.image_size, self.image_size)
        if condition is None:
            pixels = torch.full(shape, BACKGROUND_INTENSITY, device=device)
        else:
            pixels = self.intensity[self._pixel_tokens(condition)].view(shape)
        patches = patchify(pixels, self.patch)
        lengths = torch.full((rows,), patches.shape[1], device=device)
        return View(inputs=patches, lengths=lengths, attention_mask=FullMask())

    def decoder_prefix(self) -> tuple[int, ...]:
        # The class token, which is <s>, stands among the patches and has been read with them.
        return ()

    def _pixel_tokens(self, image: Batch) -> Tensor:
        """(B, side²) the tokens between the start and the end symbol."""
        size, vocabulary = self.image_size**2, self.vocabulary
        first = int(vocabulary.start is not None)
        around = first + int(vocabulary.end is not None)
        wrong = image.lengths[image.lengths != size + around]
        if len(wrong):
            raise UserError(
                f"an image is {self.image_size} × {self.image_size} = {size} numbers here, and "
                f"one of "
                f"{int(wrong[0]) - around} tokens came; give images of that size, or --set side."
            )
        return image.tokens[:, first : first + size]


def patchify(pixels: Tensor, patch: int) -> Tensor:
    """(B, side, side) as (B, (side / patch)², patch²), patches and their pixels row by row."""
    rows, side, _ = pixels.shape
    count = side // patch
    tiles = pixels.view(rows, count, patch, count, patch).transpose(2, 3)
    return tiles.reshape(rows, count * count, patch * patch)
