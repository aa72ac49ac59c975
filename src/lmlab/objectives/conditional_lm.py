"""Conditional language modelling: seq2seq given a source text, or given image patches."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import EmissionNetwork, Network, prediction_mask
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.untrusted_input import parse_integer
from lmlab.core.view import View, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.objective_interfaces import Seq2SeqObjective, sum_losses


class ConditionalLM(Seq2SeqObjective):
    """Seq2seq: log p(s | x) = Σ_t log p(s_t | s_<t, x); x is encoded, s is decoded.

    A text without a source is conditioned on the empty source, <s> </s>. `source` is the source
    vocabulary, where it differs. With label `smoothing` ε (Szegedy et al. 2016) the training loss
    is (1 - ε) times the target's plus ε times the mean over all tokens; evaluation is unaffected.
    """

    kind: ClassVar[ScoreKind] = "exact"
    prediction_kind = "source and prefix"

    def __init__(
        self, vocabulary: Vocabulary, *, source: Vocabulary | None = None, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.source = source or vocabulary
        self.label_smoothing = smoothing

    def check_sampled_loss(self) -> None:
        if self.label_smoothing:
            raise UserError(
                "label smoothing needs the log-probabilities of all tokens, which a sampled "
                "loss does not compute; use --set label_smoothing=0, or remove --objective."
            )

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        if self.label_smoothing == 0 or not self.training:
            return super().loss(network, batch, state=state, generator=generator)
        assert isinstance(network, EmissionNetwork)
        view = self.view(batch, generator=generator)
        target_mask = prediction_mask(view)
        assert view.prediction_view.targets is not None
        values, targets = (
            network.hidden(view, state).values[target_mask],
            view.prediction_view.targets[target_mask],
        )
        exact, mean = network.emission.log_prob_and_mean(values, targets)
        losses = -(1 - self.label_smoothing) * exact - self.label_smoothing * mean
        return sum_losses(losses), None

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        source = self.source_view(batch.condition, len(batch), batch.tokens.device)
        return replace(source, decoder=causal_view(batch))

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        if condition is None:
            empty = [[i for i in (self.source.start, self.source.end) if i is not None]]
            condition = Batch.collate(empty * rows, pad=self.source.pad).to(device)
        return View(inputs=condition.tokens, lengths=condition.lengths, attention_mask=FullMask())

    def decoder_prefix(self) -> tuple[int, ...]:
        return (self.vocabulary.bos,)

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        predictions = network.target_log_probs(self.view(batch, generator=generator))
        return LogProbs(per_token=predictions.to_dense(), kind=self.kind)


BACKGROUND_INTENSITY = -1.0
"""Intensity of pixel value 0; that of the highest value is 1."""


class ImageConditionalLM(ConditionalLM):
    """Image to text: log p(s | x) = Σ_t log p(s_t | s_<t, x), x an image cut into patches.

    An image arrives as the condition of a batch: side² numbers row by row, from 0 to the highest of
    the vocabulary, mapped to intensities from -1 to 1. The view shows patches as vectors, (B, P,
    patch²) with P = (side / patch)² (Dosovitskiy et al. 2021). A text without a condition gets an
    empty image, all 0.
    """

    extra_positions = 0  # the patches have positions of their own
    prediction_kind = ""  # patches are of the size that this system embeds
    intensity: Tensor

    def __init__(self, vocabulary: Vocabulary, *, side: int, patch: int) -> None:
        super().__init__(vocabulary)
        self.image_size = side
        self.patch = patch
        # Saved with the weights: only the tokenizer knows which id is which number.
        self.register_buffer("intensity", torch.zeros(vocabulary.size))

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Record which ids are numbers; all others map to intensity 0."""
        words = {id: tokenizer.token(id) for id in range(self.vocabulary.size)}
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
        # The class token, <s>, is encoded among the patches.
        return ()

    def _pixel_tokens(self, image: Batch) -> Tensor:
        """(B, side²) tokens between the start and the end token."""
        size, vocabulary = self.image_size**2, self.vocabulary
        first = int(vocabulary.start is not None)
        special_count = first + int(vocabulary.end is not None)
        wrong_lengths = image.lengths[image.lengths != size + special_count]
        if len(wrong_lengths):
            raise UserError(
                f"an image must have {self.image_size} × {self.image_size} = {size} pixels, got "
                f"{int(wrong_lengths[0]) - special_count}; give images of that size, or "
                "train with another --set image_size=…."
            )
        return image.tokens[:, first : first + size]


def patchify(pixels: Tensor, patch: int) -> Tensor:
    """(B, side, side) as (B, (side / patch)², patch²), patches and their pixels row by row."""
    rows, side, _ = pixels.shape
    count = side // patch
    tiles = pixels.view(rows, count, patch, count, patch).transpose(2, 3)
    return tiles.reshape(rows, count * count, patch * patch)
