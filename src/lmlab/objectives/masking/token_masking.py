"""Token masking (BERT): independent selection, 80/10/10 replacement, static masks, masked views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.layers.per_example_rng import per_example_generator, per_example_uniform

SHARE_TOLERANCE = 1e-9
"""Tolerance by which a sum of shares may exceed one."""


class MaskingStrategy(Protocol):
    """Selects the masked positions of a clean batch."""

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, T) bool, a subset of the positions `allowed` (B, T)."""
        ...


@dataclass(frozen=True)
class IndependentMasking:
    """Independent masking of each token with probability `rate` (Devlin et al. 2019: 0.15)."""

    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        uniforms = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        return ensure_one_masked(uniforms.masked_fill(~allowed, 2.0), uniforms < self.rate, allowed)


def ensure_one_masked(uniforms: Tensor, chosen: Tensor, allowed: Tensor) -> Tensor:
    """The chosen positions (B, T); in a row without any, the allowed one with the lowest number.

    A text without masked tokens has no loss, which is frequent for short texts: the published codes
    mask the rounded share, at least one. `uniforms` is high where masking is not allowed. Positions
    with equal numbers, such as those of one word, are taken together.
    """
    lowest = uniforms == uniforms.amin(1, keepdim=True)
    none_chosen = ~(chosen & allowed).any(1, keepdim=True)
    return (chosen | (lowest & none_chosen)) & allowed


@dataclass(frozen=True, kw_only=True)
class MaskReplacement:
    """80/10/10 replacement: <mask> (0.8), a random token (0.1) or unchanged (Devlin et al. 2019).

    `per_span`: adjacent masked tokens share the draw, so that a span is masked, replaced or kept as
    a whole (Joshi et al. 2020).
    """

    vocabulary: Vocabulary
    mask: float = 0.8
    random: float = 0.1
    per_span: bool = False

    def __post_init__(self) -> None:
        require_mask_token(self.vocabulary)
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1 + SHARE_TOLERANCE:
            raise UserError(
                f"the shares of masked tokens that become the mask token ({self.mask:g}) and a "
                f"random token ({self.random:g}) must sum to at most 1; give smaller shares."
            )

    def __call__(
        self, tokens: Tensor, chosen: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The tokens (B, T) with those at `chosen` replaced."""
        uniforms = per_example_uniform(tokens.shape, tokens.device, generator=generator)
        if self.per_span:
            uniforms = uniforms.gather(1, run_starts(~chosen | ~shift_right(chosen, fill=False)))
        inputs = tokens.masked_fill(
            chosen & (uniforms < self.mask), require_mask_token(self.vocabulary)
        )
        swapped = chosen & (uniforms >= self.mask) & (uniforms < self.mask + self.random)
        return torch.where(swapped, self._random(tokens, generator), inputs)

    def _random(self, tokens: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tokens sampled uniformly from those that can be predicted."""
        uniforms = per_example_uniform(tokens.shape, tokens.device, generator=generator)
        return ordinary_tokens_at(self.vocabulary, uniforms)


def require_mask_token(vocabulary: Vocabulary) -> int:
    """The id of the mask token; raises an error if there is none."""
    if vocabulary.mask is None:
        raise UserError(
            "this objective needs a mask token, and the tokenizer has neither <mask> nor "
            "[MASK]; add one to its tokenizer.json, or train one with --tokenizer bpe."
        )
    return vocabulary.mask


@lru_cache(maxsize=8)
def ordinary_token_ids(vocabulary: Vocabulary) -> Tensor:
    """Ids of ordinary tokens: no special tokens except the unknown token."""
    never = {*vocabulary.unpredictable, vocabulary.end}
    return torch.tensor([i for i in range(vocabulary.size) if i not in never])


def ordinary_tokens_at(vocabulary: Vocabulary, uniforms: Tensor) -> Tensor:
    """Uniformly distributed ordinary tokens, from numbers in [0, 1)."""
    table = ordinary_token_ids(vocabulary).to(uniforms.device)
    return table[(uniforms * len(table)).long().clamp(max=len(table) - 1)]


def maskable_positions(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B, T) bool: positions that may be masked: no padding, start or end token."""
    maskable = batch.mask()
    for token in (vocabulary.start, vocabulary.end):
        if token is not None:
            maskable = maskable & (batch.tokens != token)
    # Position 0 is context, whatever it holds.
    return maskable & batch.targets_mask()


def shift_right(values: Tensor, *, fill: bool) -> Tensor:
    """(B, T) values shifted right by one position, `fill` at the first."""
    first = torch.full_like(values[:, :1], fill)
    return torch.cat([first, values[:, :-1]], 1)


def run_starts(starts: Tensor) -> Tensor:
    """(B, T) start position of each position's run: the last of `starts` (B, T) up to it."""
    positions = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    return positions.masked_fill(~starts, 0).cummax(1).values


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedBatch:
    """A batch with its sampled mask."""

    masked: Tensor
    """(B, T) bool: the masked positions."""
    inputs: Tensor
    """(B, T) input tokens, with the replacements of the masked ones."""


MaskSampler = Callable[[Batch, torch.Generator | None], MaskedBatch]
"""Masks some tokens of a clean batch."""


@dataclass(frozen=True, kw_only=True)
class StaticMasking:
    """Static masking: a text always gets one of `duplicates` masks (Devlin et al. 2019: 10).

    The mask depends on `seed`, the text's index in its dataset (`batch.rows`) and the sampled
    duplicate, not on the rest of the batch. A segment of contiguous text has no index, and its mask
    is sampled anew.
    """

    seed: int = 0
    duplicates: int = 10

    def __call__(
        self, sample_mask: MaskSampler, batch: Batch, *, generator: torch.Generator | None = None
    ) -> MaskedBatch:
        """The result of `sample_mask`, with each row's own random numbers."""
        if batch.continues_previous:
            return sample_mask(batch, generator)
        duplicate = (
            sample_uniform((len(batch),), batch.tokens.device, generator=generator)
            * self.duplicates
        )
        return sample_mask(batch, per_example_generator(self.seed, batch.rows, duplicate.long()))


def masked_view(batch: Batch, inputs: Tensor, masked: Tensor) -> View:
    """The `inputs` (B, T), with the clean tokens as targets at the `masked` positions (B, T)."""
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return View(
        inputs=inputs,
        lengths=batch.lengths,
        attention_mask=FullMask(),
        targets=batch.tokens.masked_fill(~masked, NO_TARGET),
        clean_positions=positions.expand_as(batch.tokens).masked_fill(~masked, -1),
    )
