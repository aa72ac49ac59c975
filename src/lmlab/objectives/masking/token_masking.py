"""Token masking for masked LMs: which tokens are masked, and what replaces them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
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
        drawn = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        return ensure_one_masked(drawn.masked_fill(~allowed, 2.0), drawn < self.rate, allowed)


def ensure_one_masked(drawn: Tensor, chosen: Tensor, allowed: Tensor) -> Tensor:
    """The chosen positions (B, T); in a row without any, the allowed one with the lowest draw.

    A text without masked tokens has no loss, which is frequent for short texts: the published codes
    mask the rounded share, at least one. `drawn` is high where masking is not allowed. Positions
    with equal draws, such as those of one word, are taken together.
    """
    lowest = drawn == drawn.amin(1, keepdim=True)
    lonely = ~(chosen & allowed).any(1, keepdim=True)
    return (chosen | (lowest & lonely)) & allowed


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
        drawn = per_example_uniform(tokens.shape, tokens.device, generator=generator)
        if self.per_span:
            drawn = drawn.gather(1, run_starts(~chosen | ~shift_right(chosen, fill=False)))
        shown = tokens.masked_fill(
            chosen & (drawn < self.mask), require_mask_token(self.vocabulary)
        )
        swapped = chosen & (drawn >= self.mask) & (drawn < self.mask + self.random)
        return torch.where(swapped, self._random(tokens, generator), shown)

    def _random(self, tokens: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tokens sampled uniformly from those that can be predicted."""
        table = ordinary_token_ids(self.vocabulary).to(tokens.device)
        drawn = per_example_uniform(tokens.shape, tokens.device, generator=generator)
        return table[(drawn * len(table)).long().clamp(max=len(table) - 1)]


def require_mask_token(vocabulary: Vocabulary) -> int:
    """The id of the mask token; raises an error if there is none."""
    if vocabulary.mask is None:
        raise UserError(
            "this objective needs a mask token, and the tokeniser has neither <mask> nor "
            "[MASK]; add one to its tokenizer.json, or train one with --tokenizer bpe."
        )
    return vocabulary.mask


@lru_cache(maxsize=8)
def ordinary_token_ids(vocabulary: Vocabulary) -> Tensor:
    """Ids of ordinary tokens: no special tokens except the unknown token."""
    never = {*vocabulary.unpredictable, vocabulary.end}
    return torch.tensor([i for i in range(vocabulary.size) if i not in never])


def maskable_positions(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B, T) bool: positions that may be masked: no padding, start or end token."""
    kept = batch.mask()
    for symbol in (vocabulary.start, vocabulary.end):
        if symbol is not None:
            kept = kept & (batch.tokens != symbol)
    # Position 0 is context, whatever it holds.
    return kept & batch.targets_mask()


def shift_right(values: Tensor, *, fill: bool) -> Tensor:
    """(B, T) values shifted right by one position, `fill` at the first."""
    first = torch.full_like(values[:, :1], fill)
    return torch.cat([first, values[:, :-1]], 1)


def run_starts(starts: Tensor) -> Tensor:
    """(B, T) start position of each position's run: the last of `starts` (B, T) up to it."""
    place = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    return place.masked_fill(~starts, 0).cummax(1).values


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
        self, draw: MaskSampler, batch: Batch, *, generator: torch.Generator | None = None
    ) -> MaskedBatch:
        """The result of `draw`, with each row's own random numbers."""
        if batch.continues_previous:
            return draw(batch, generator)
        which = (
            sample_uniform((len(batch),), batch.tokens.device, generator=generator)
            * self.duplicates
        )
        return draw(batch, per_example_generator(self.seed, batch.rows, which.long()))
