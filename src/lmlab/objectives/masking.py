"""Which tokens are hidden, and what stands where they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import uniform


class Choice(Protocol):
    """Which places of a clean batch are hidden."""

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, T) bool, true at some of the places where `allowed` (B, T) is."""
        ...


@dataclass(frozen=True)
class EachToken:
    """Every token by itself with probability `rate` (Devlin et al. 2019: 0.15)."""

    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        drawn = uniform(allowed.shape, allowed.device, generator=generator)
        return at_least_one(drawn.masked_fill(~allowed, 2.0), drawn < self.rate, allowed)


def at_least_one(drawn: Tensor, chosen: Tensor, allowed: Tensor) -> Tensor:
    """The chosen places (B, T); in a row without any, the allowed one that drew the lowest number.

    A text of which nothing is hidden teaches nothing, and short texts are often such: the published
    codes take the rounded share, and at least one. `drawn` is high where nothing is allowed.
    """
    lowest = drawn == drawn.amin(1, keepdim=True)
    lonely = ~(chosen & allowed).any(1, keepdim=True)
    return (chosen | (lowest & lonely)) & allowed


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Hidden tokens become <mask> (0.8), a random token (0.1) or stay (Devlin et al. 2019)."""

    vocabulary: Vocabulary
    mask: float = 0.8
    random: float = 0.1

    def __call__(
        self, tokens: Tensor, chosen: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The tokens (B, T) with those at `chosen` replaced."""
        assert self.vocabulary.mask is not None, "hiding tokens needs a mask symbol"
        drawn = uniform(tokens.shape, tokens.device, generator=generator)
        shown = tokens.masked_fill(chosen & (drawn < self.mask), self.vocabulary.mask)
        swapped = chosen & (drawn >= self.mask) & (drawn < self.mask + self.random)
        return torch.where(swapped, self._random(tokens, generator), shown)

    def _random(self, tokens: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tokens drawn evenly from those that can be predicted."""
        never = {*self.vocabulary.unpredictable, self.vocabulary.end}
        ordinary = [i for i in range(self.vocabulary.size) if i not in never]
        table = torch.tensor(ordinary, device=tokens.device)
        drawn = uniform(tokens.shape, tokens.device, generator=generator)
        return table[(drawn * len(ordinary)).long().clamp(max=len(ordinary) - 1)]


def ordinary_places(batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """(B, T) bool: the places that may be hidden: not padding, not the start, not the end."""
    kept = batch.mask()
    for symbol in (vocabulary.start, vocabulary.end):
        if symbol is not None:
            kept = kept & (batch.tokens != symbol)
    # Place 0 is context, whatever stands there.
    return kept & batch.targets_mask()
