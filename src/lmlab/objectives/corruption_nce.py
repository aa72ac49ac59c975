"""Noise-contrastive estimation against one-token corruptions of the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.parts import Network
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.membership import MembershipTest, NgramSet, TextSet
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.token_masking import maskable_positions
from lmlab.objectives.objective_interfaces import (
    DATA_LABEL,
    NOISE_LABEL,
    EnergyObjective,
    EnergyPooling,
)
from lmlab.objectives.token_corruption import TokenCorruption

BuildMembership = Callable[[NDArray[np.generic], NDArray[np.int64]], MembershipTest]
"""Builds the membership test for changed texts from the training split (flat ids and offsets)."""


def ngram_membership(size: int) -> BuildMembership:
    """Membership by n-grams of this size around the position: looser than whole texts."""
    return partial(NgramSet, size=size)


class CorruptionNCE(EnergyObjective):
    """NCE: -Σ_x log Q(data | x) - Σ_{x'} log(1 - Q(data | x')), x' = f(x, i, k), Q = σ(-E - log n).

    f(x, i, k) replaces the token at position i by k. i is uniform over the tokens of x, and k is
    sampled n times from `corruption`. A corruption that is itself in the data, or equals x, is a
    false negative and is dropped. Membership in the data is indexed from the training split by
    `index`; a loaded run has no index and knows only x.

    Without false negatives the two distributions have disjoint support, so E learns which texts are
    data and no density ratio. With `index` None nothing is dropped, and the optimum is E = -log
    p_data(x) / p_corrupt(x). Rows of the view: the B texts, then their corruptions. Cost: 1 + n
    passes.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        corruption: TokenCorruption,
        pooling: EnergyPooling,
        *,
        negatives: int = 1,
        index: BuildMembership | None = TextSet,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.corruption = corruption
        self.pooling = pooling
        self.negatives = negatives
        self.index = index
        self.known: MembershipTest | None = None

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        self.corruption.setup_data(tokens)
        self.known = None if self.index is None else self.index(tokens, offsets)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        places, possible = self._places(batch, generator)
        drawn = self.corruption(batch, places, self.negatives, generator=generator)
        rows = torch.arange(len(batch), device=places.device)
        copies = batch.select(rows.repeat_interleave(self.negatives))
        where = places.repeat_interleave(self.negatives)
        made = copies.tokens.clone()
        made[torch.arange(len(made), device=made.device), where] = drawn.flatten()
        kept = possible.repeat_interleave(self.negatives) & ~self._members(copies, made, where)
        blank = torch.cat([places, where[kept]])
        inputs = torch.cat([batch.tokens, made[kept]])
        blanks = torch.arange(inputs.shape[1], device=inputs.device) == blank[:, None]
        told = torch.full_like(blank, NOISE_LABEL)
        told[: len(batch)] = DATA_LABEL
        return View(
            inputs=inputs,
            lengths=torch.cat([batch.lengths, copies.lengths[kept]]),
            attention_mask=self.pooling.attention_mask(blanks),
            targets=told[:, None].expand_as(inputs).masked_fill(~blanks, NO_TARGET),
            clean_positions=blank[:, None].expand_as(inputs).masked_fill(~blanks, -1),
        )

    def _places(self, batch: Batch, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(B,) the corrupted position, and whether the text has one."""
        allowed = maskable_positions(batch, self.vocabulary)
        drawn = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        return drawn.masked_fill(~allowed, -1.0).argmax(1), allowed.any(1)

    def _members(self, copies: Batch, made: Tensor, places: Tensor) -> Tensor:
        """(N,) bool: whether the corrupted texts (N, T) are in the data or unchanged."""
        same = (made == copies.tokens).all(1)
        if self.index is None:
            return torch.zeros_like(same)
        if self.known is None:
            return same
        asked = (each.cpu().numpy() for each in (made, copies.lengths, places))
        return same | torch.from_numpy(self.known(*asked)).to(same.device)
