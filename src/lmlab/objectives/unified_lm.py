"""Unified LM (UniLM): bidirectional, left-to-right, right-to-left, seq2seq masks; n-gram masking.

Dong et al. 2019: bidirectional, left-to-right, right-to-left and sequence-to-sequence masked LM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.block_masks import (
    TokenBlock,
    gather_positions,
    join_blocks,
    log_probs_by_clean_position,
    rank_mask,
)
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskingStrategy,
    MaskReplacement,
    ensure_one_masked,
    maskable_positions,
)
from lmlab.objectives.objective_interfaces import MaskedLMObjective


class UniLMMode(IntEnum):
    """The attention mode of a row."""

    BIDIRECTIONAL = 0
    SEQUENCE_TO_SEQUENCE = 1
    LEFT_TO_RIGHT = 2
    RIGHT_TO_LEFT = 3


FIRST_SEGMENT = {
    UniLMMode.BIDIRECTIONAL: 0,
    UniLMMode.LEFT_TO_RIGHT: 2,
    UniLMMode.RIGHT_TO_LEFT: 3,
    UniLMMode.SEQUENCE_TO_SEQUENCE: 4,
}
"""Segment ids tell the network the mode of a row, as in the authors' code; a second segment has the
next id: 0 and 1 are the sentences of the bidirectional mode, 4 and 5 source and target."""
SEGMENT_COUNT = 6
MODE_DESCRIPTIONS = {
    UniLMMode.BIDIRECTIONAL: "bidirectional, every position attends to every other",
    UniLMMode.SEQUENCE_TO_SEQUENCE: (
        "sequence to sequence, the first segment encoded and the second decoded"
    ),
    UniLMMode.LEFT_TO_RIGHT: "left to right, a position attends to itself and those before it",
    UniLMMode.RIGHT_TO_LEFT: "right to left, a position attends to itself and those after it",
}
"""Descriptions of the modes."""


class UniLMObjective(MaskedLMObjective):
    """UniLM: -Σ_{t masked} log p(s_t | what the mode lets position t see), a random mode per row.

    `shares` are the modes' probabilities: bidirectional ⅓; sequence to sequence ⅓ (the text is
    split at random, with </s> between the parts; the first part attends to itself, the second to
    the first and its own past); left to right ⅙ and right to left ⅙. `choice` selects the masked
    tokens. In generative modes the end token may be masked too, so that the network learns when to
    stop; the paper does so in fine-tuning only.

    A batch with a condition is fine-tuning for generation: the condition is the first segment, and
    `target_rate` of the text's tokens and its end are masked.

    log_prob is exact, left to right: log p(s) = Σ_t log p(s_t | s_<t), each predicted at a <mask>
    in its position that attends to the tokens before it: one pass over the text and as many masks,
    2T positions. With a condition it is log p(s | condition).
    """

    kind: ClassVar[ScoreKind] = "exact"
    extra_positions = 2  # a text split in two has one more separator

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: MaskingStrategy,
        replacement: MaskReplacement | None = None,
        *,
        shares: Sequence[float] = (1 / 3, 1 / 3, 1 / 6, 1 / 6),
        target_rate: float = 0.7,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        if len(shares) != len(UniLMMode) or min(shares) < 0 or sum(shares) <= 0:
            raise UserError(
                "the shares of UniLM's modes must be four numbers (bidirectional, sequence to "
                "sequence, left to right, right to left), none negative and not all 0, got "
                f"{shares}."
            )
        self.vocabulary = vocabulary
        self.choice = choice
        self.target_choice = IndependentMasking(target_rate)
        self.replacement = replacement or MaskReplacement(vocabulary=vocabulary)
        self.mode_probabilities = tuple(shares)
        self.longest = max_length
        """Maximum number of positions of the network."""

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if batch.condition is not None:
            return self.generation_finetuning_view(batch, generator=generator)
        uniforms = sample_uniform((len(batch),), batch.tokens.device, generator=generator)
        ends = torch.tensor(self.mode_probabilities, device=uniforms.device).cumsum(0)
        modes = torch.bucketize(uniforms, ends / ends[-1], right=True).clamp(max=len(UniLMMode) - 1)
        return self.view_in_modes(batch, modes, generator=generator)

    def view_in_modes(
        self, batch: Batch, modes: Tensor, *, generator: torch.Generator | None = None
    ) -> View:
        """The batch with each row in its given mode (B,)."""
        halves = modes == UniLMMode.SEQUENCE_TO_SEQUENCE
        generative = halves | (modes == UniLMMode.LEFT_TO_RIGHT)
        allowed = self._maskable(batch, generative)
        chosen = self.choice(batch, allowed, generator=generator)
        cuts = self._sample_splits(batch, generator)[:, None]
        lengths = batch.lengths + halves
        # A row in two parts has a separator after its split, which shifts the rest by one.
        positions = torch.arange(int(lengths.max()), device=batch.tokens.device)
        separator = halves[:, None] & (positions == cuts + 1)
        second = halves[:, None] & (positions > cuts + 1)
        clean = (positions - (separator | second).long()).clamp(max=batch.tokens.shape[1] - 1)
        tokens = gather_positions(batch.tokens, clean).masked_fill(separator, self.separator)
        masked = gather_positions(chosen, clean) & ~separator & (positions < lengths[:, None])
        first = torch.tensor([FIRST_SEGMENT[mode] for mode in UniLMMode], device=modes.device)
        return View(
            inputs=self.replacement(tokens, masked, generator=generator),
            lengths=lengths,
            attention_mask=rank_mask(position_ranks(modes, positions, second)),
            targets=tokens.masked_fill(~masked, NO_TARGET),
            segments=first[modes][:, None] + second.long(),
            clean_positions=clean.masked_fill(~masked, -1),
        )

    def explain(self, view: View) -> tuple[str, ...]:
        """The mode of the first row, known from its segments."""
        assert view.segments is not None
        mode = mode_of(int(view.segments[0, 0]))
        return (
            f"Mode {mode + 1} of {len(UniLMMode)}, given by the segment ids: "
            f"{MODE_DESCRIPTIONS[mode]}.",
        )

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """Bidirectional mode, with the given positions masked."""
        segments = torch.full_like(batch.tokens, FIRST_SEGMENT[UniLMMode.BIDIRECTIONAL])
        return replace(super().fill_view(batch, masked), segments=segments)

    def autoregressive_view(self, batch: Batch) -> View:
        """The text plus one <mask> per token, which attends to the tokens before it."""
        assert self.vocabulary.mask is not None
        text = self._text_block(batch)
        masks = replace(
            text,
            inputs=torch.full_like(text.inputs, self.vocabulary.mask),
            targets=batch.tokens[:, 1:],
            clean_positions=torch.arange(1, batch.tokens.shape[1], device=batch.tokens.device)[
                None
            ],
            is_query=True,
        )
        return join_blocks([self._prefix_block(batch), text, masks], pad=self.vocabulary.pad)

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        return log_probs_by_clean_position(network, self.autoregressive_view(batch), batch)

    def generation_finetuning_view(
        self, batch: Batch, *, generator: torch.Generator | None = None
    ) -> View:
        """Fine-tuning for generation: the condition is visible, the text partly masked."""
        chosen = self.target_choice(batch, batch.targets_mask(), generator=generator)
        inputs = self.replacement(batch.tokens, chosen, generator=generator)
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)[None]
        text = replace(
            self._text_block(batch),
            inputs=inputs[:, 1:],
            targets=batch.tokens.masked_fill(~chosen, NO_TARGET)[:, 1:],
            clean_positions=positions.expand_as(chosen).masked_fill(~chosen, -1)[:, 1:],
        )
        return join_blocks([self._prefix_block(batch), text], pad=self.vocabulary.pad)

    def _prefix_block(self, batch: Batch) -> TokenBlock:
        """What precedes the generated tokens: the condition, or position 0 alone."""
        condition = batch.condition
        tokens = batch.tokens[:, :1] if condition is None else condition.tokens
        lengths = torch.ones_like(batch.lengths) if condition is None else condition.lengths
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return TokenBlock(
            inputs=tokens,
            real=positions < lengths[:, None],
            positions=positions,
            ranks=0,
            segments=generation_segments(condition)[0],
        )

    def _text_block(self, batch: Batch) -> TokenBlock:
        """Positions 1 … T-1 unmasked, each visible to itself and later ones."""
        condition = batch.condition
        prefix_lengths = torch.ones_like(batch.lengths) if condition is None else condition.lengths
        offsets = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
        positions = prefix_lengths[:, None] + offsets
        self.check_length(int((prefix_lengths + batch.lengths).max()) - 1)
        return TokenBlock(
            inputs=batch.tokens[:, 1:],
            real=batch.targets_mask()[:, 1:],
            positions=positions,
            ranks=positions,
            segments=generation_segments(condition)[1],
        )

    @property
    def separator(self) -> int:
        """Separator between two parts: the end token, where there is one."""
        end = self.vocabulary.end
        return self.vocabulary.bos if end is None else end

    def _maskable(self, batch: Batch, generative: Tensor) -> Tensor:
        """(B, T) bool: ordinary tokens, and in generative rows (B,) the end token too."""
        ends = batch.targets_mask() & (batch.tokens == self.separator)
        return maskable_positions(batch, self.vocabulary) | (ends & generative[:, None])

    def _sample_splits(self, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """(B,) last position of the first part; both are non-empty if there are two tokens."""
        uniforms = sample_uniform((len(batch),), batch.tokens.device, generator=generator)
        tokens = maskable_positions(batch, self.vocabulary).sum(1)
        return torch.where(tokens > 1, 1 + (uniforms * (tokens - 1)).long(), 0)

    def check_length(self, length: int) -> None:
        """Raise a UserError if there are more tokens than positions."""
        if self.longest is not None and length > self.longest:
            raise UserError(
                f"a text with its condition may have at most {self.longest} tokens, got "
                f"{length}; shorten it, or train with a larger --set length=…."
            )


def mode_of(segment: int) -> UniLMMode:
    """The mode of a row that begins with this segment id."""
    return next(mode for mode, first in FIRST_SEGMENT.items() if first == segment)


def position_ranks(modes: Tensor, positions: Tensor, second: Tensor) -> Tensor:
    """(B, T) ranks of positions (T,) in the modes (B,); `second` (B, T): the second part."""
    by_mode = {
        UniLMMode.BIDIRECTIONAL: torch.zeros_like(second, dtype=torch.long),
        UniLMMode.SEQUENCE_TO_SEQUENCE: positions * second,
        UniLMMode.LEFT_TO_RIGHT: positions.expand_as(second),
        UniLMMode.RIGHT_TO_LEFT: -positions.expand_as(second),
    }
    return gather_positions(torch.stack([by_mode[mode] for mode in UniLMMode], 1), modes[:, None])[
        :, 0
    ]


def generation_segments(condition: Batch | None) -> tuple[int, int]:
    """Segment ids of what precedes the text and of the text itself, when it is generated."""
    if condition is None:
        return FIRST_SEGMENT[UniLMMode.LEFT_TO_RIGHT], FIRST_SEGMENT[UniLMMode.LEFT_TO_RIGHT]
    source = FIRST_SEGMENT[UniLMMode.SEQUENCE_TO_SEQUENCE]
    return source, source + 1


@dataclass(frozen=True, kw_only=True)
class NgramMasking:
    """N-gram masking: each token is masked with probability `rate`, by spans of 1 to `max_ngram`.

    A span has one token with probability 1 - `ngram_rate`, else 2 … `max_ngram` tokens, uniformly
    (Dong et al. 2019: 0.2 and 3). Spans start at each position independently, at a rate such that
    P(masked) = rate; they may overlap, and stop at positions that may not be masked.
    """

    rate: float = 0.15
    ngram_rate: float = 0.2
    max_ngram: int = 3

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        rows, time = allowed.shape
        # Spans may start before the text, or its first positions would be masked less often.
        shape = rows, time + self.max_ngram - 1
        uniforms = sample_uniform(shape, allowed.device, generator=generator)
        sizes = self.sizes(sample_uniform(shape, allowed.device, generator=generator))
        chosen = torch.zeros_like(allowed)
        for offset in range(self.max_ngram):
            first = self.max_ngram - 1 - offset
            is_start = uniforms[:, first : first + time] < self.start_rate
            chosen |= is_start & (sizes[:, first : first + time] > offset)
        fallback = uniforms[:, self.max_ngram - 1 :].masked_fill(~allowed, 2.0)
        return ensure_one_masked(fallback, chosen, allowed)

    def sizes(self, uniforms: Tensor) -> Tensor:
        """Span length, for a number in [0, 1)."""
        length_count = max(self.max_ngram - 1, 1)
        long = 2 + (uniforms / max(self.ngram_rate, 1e-9) * length_count).long().clamp(
            max=length_count - 1
        )
        return torch.where(uniforms < self.ngram_rate, long, 1)

    @property
    def start_rate(self) -> float:
        """Span start probability q: Π_k (1 - q P(size > k)) = 1 - rate, by bisection."""
        over = [1.0] + [
            self.ngram_rate * (self.max_ngram - k) / (self.max_ngram - 1)
            for k in range(1, self.max_ngram)
        ]
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            unmasked_probability = math.prod(1 - middle * probability for probability in over)
            low, high = (middle, high) if unmasked_probability > 1 - self.rate else (low, middle)
        return low
