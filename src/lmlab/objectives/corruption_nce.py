"""Noise-contrastive estimation (NCE) of text energies: token corruptions, energy pooling, loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.attention_mask import AttentionMask, ExplicitMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Network
from lmlab.core.protocols import Fill, require
from lmlab.core.system import FrozenSystem, System
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.membership import MembershipTest, NgramSet, TextSet
from lmlab.layers.noise import sample_uniform
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.token_masking import (
    maskable_positions,
    ordinary_token_ids,
    ordinary_tokens_at,
)
from lmlab.objectives.objective_interfaces import (
    DATA_LABEL,
    NOISE_LABEL,
    EnergyObjective,
    EnergyPooling,
)


@dataclass(frozen=True)
class AllPositionsPooling:
    """Sum over template and blanks: E = Σ_t e_t, with full attention."""

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return FullMask()

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return real


@dataclass(frozen=True)
class BlanksPooling(AllPositionsPooling):
    """Sum over blanks: E = Σ_{t blank} e_t; the template takes part in attention only."""

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return blanks & real


@dataclass(frozen=True)
class IsolatedTemplatePooling(AllPositionsPooling):
    """Isolated template: E = Σ_t e_t, the template attends only to itself and is constant.

    Its forward pass does not depend on the candidates, and it contributes a learned constant
    c(template), which plays the role of NCE's learned normaliser for p(blanks | template) (Gutmann
    and Hyvärinen 2010).
    """

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return ExplicitMask(blanks[:, :, None] | ~blanks[:, None, :])


class TokenCorruption(nn.Module, ABC):
    """A distribution over replacement tokens for one position of each text, given the text."""

    def setup_data(self, tokens: NDArray[np.generic]) -> None:
        """Receive all ids of the training split before training."""
        return

    @abstractmethod
    def forward(
        self, batch: Batch, positions: Tensor, count: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, count) replacements at the position (B,) of each text, possibly the original."""


class UniformCorruption(TokenCorruption):
    """Uniform over ordinary tokens: most corruptions are far from language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(
        self, batch: Batch, positions: Tensor, count: int, generator: torch.Generator | None = None
    ) -> Tensor:
        uniforms = sample_uniform((len(batch), count), positions.device, generator=generator)
        return ordinary_tokens_at(self.vocabulary, uniforms)


class UnigramCorruption(TokenCorruption):
    """Unigram frequencies of the training split: rare words are no sign of corruption."""

    weights: Tensor

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.register_buffer("weights", torch.zeros(vocabulary.size))
        self.setup_data(ordinary_token_ids(vocabulary).numpy())  # uniform before setup

    def setup_data(self, tokens: NDArray[np.generic]) -> None:
        counts = np.bincount(tokens, minlength=self.vocabulary.size)
        ordinary = ordinary_token_ids(self.vocabulary)
        self.weights.zero_()
        self.weights[ordinary] = torch.from_numpy(counts)[ordinary].to(self.weights)

    def forward(
        self, batch: Batch, positions: Tensor, count: int, generator: torch.Generator | None = None
    ) -> Tensor:
        return sample_by_weights(self.weights.expand(len(batch), -1), count, generator=generator)


class MaskedLMCorruption(TokenCorruption):
    """A masked LM's predictions at the masked position: the hardest negatives.

    The model is a trained run and stays frozen. Cost: one pass of it.
    """

    def __init__(self, proposer: System) -> None:
        super().__init__()
        require(proposer, Fill, "proposing corruptions")
        self.proposer = FrozenSystem(proposer)

    @torch.no_grad()
    def forward(
        self, batch: Batch, positions: Tensor, count: int, generator: torch.Generator | None = None
    ) -> Tensor:
        proposer = self.proposer.system
        assert isinstance(proposer, Fill)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[torch.arange(len(batch), device=positions.device), positions] = True
        proposed = proposer.fill(batch, masked, generator=generator).log_probs.exp()
        weights = torch.zeros_like(proposed)
        ordinary = ordinary_token_ids(proposer.vocabulary).to(positions.device)
        weights[:, ordinary] = proposed[:, ordinary]
        return sample_by_weights(weights, count, generator=generator)


def sample_by_weights(
    weights: Tensor, count: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """(B, count) samples in proportion to weights (B, V), by inverting their cumulative sum."""
    sums = weights.double().cumsum(-1)
    uniforms = sample_uniform((len(weights), count), weights.device, generator=generator).double()
    # Strictly below the total, and past all tokens of weight zero.
    return torch.searchsorted(sums, uniforms * sums[:, -1:], right=True)


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
        positions, corruptible = self._sample_positions(batch, generator)
        replacements = self.corruption(batch, positions, self.negatives, generator=generator)
        rows = torch.arange(len(batch), device=positions.device)
        copies = batch.select(rows.repeat_interleave(self.negatives))
        noise_positions = positions.repeat_interleave(self.negatives)
        corrupted = copies.tokens.clone()
        corrupted[torch.arange(len(corrupted), device=corrupted.device), noise_positions] = (
            replacements.flatten()
        )
        is_negative = corruptible.repeat_interleave(self.negatives) & ~self._is_in_data(
            copies, corrupted, noise_positions
        )
        blank_positions = torch.cat([positions, noise_positions[is_negative]])
        inputs = torch.cat([batch.tokens, corrupted[is_negative]])
        blanks = torch.arange(inputs.shape[1], device=inputs.device) == blank_positions[:, None]
        labels = torch.full_like(blank_positions, NOISE_LABEL)
        labels[: len(batch)] = DATA_LABEL
        return View(
            inputs=inputs,
            lengths=torch.cat([batch.lengths, copies.lengths[is_negative]]),
            attention_mask=self.pooling.attention_mask(blanks),
            targets=labels[:, None].expand_as(inputs).masked_fill(~blanks, NO_TARGET),
            clean_positions=blank_positions[:, None].expand_as(inputs).masked_fill(~blanks, -1),
        )

    def _sample_positions(
        self, batch: Batch, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """(B,) the corrupted position, and whether the text has one."""
        allowed = maskable_positions(batch, self.vocabulary)
        uniforms = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        return uniforms.masked_fill(~allowed, -1.0).argmax(1), allowed.any(1)

    def _is_in_data(self, copies: Batch, corrupted: Tensor, positions: Tensor) -> Tensor:
        """(N,) bool: whether the corrupted texts (N, T) are in the data or unchanged."""
        same = (corrupted == copies.tokens).all(1)
        if self.index is None:
            return torch.zeros_like(same)
        if self.known is None:
            return same
        arrays = (tensor.cpu().numpy() for tensor in (corrupted, copies.lengths, positions))
        return same | torch.from_numpy(self.known(*arrays)).to(same.device)
