"""Token corruption: proposal distributions for the replaced token of a corrupted text."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.frozen_system import FrozenSystem
from lmlab.core.protocols import Fill, require
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.masking.token_masking import ordinary_token_ids


class TokenCorruption(nn.Module):
    """A distribution over replacement tokens for one position of each text, given the text."""

    def setup_data(self, tokens: NDArray[np.generic]) -> None:
        """Receive all ids of the training split before training."""
        return

    def forward(
        self,
        batch: Batch,
        places: Tensor,
        count: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B, count) replacements at the position (B,) of each text, possibly the original."""
        raise TypeError(f"{type(self).__name__} does not define forward")


class UniformCorruption(TokenCorruption):
    """Uniform over ordinary tokens: most corruptions are far from language."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(
        self,
        batch: Batch,
        places: Tensor,
        count: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        table = ordinary_token_ids(self.vocabulary).to(places.device)
        drawn = sample_uniform((len(batch), count), places.device, generator=generator)
        return table[(drawn * len(table)).long().clamp(max=len(table) - 1)]


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
        self,
        batch: Batch,
        places: Tensor,
        count: int,
        *,
        generator: torch.Generator | None = None,
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
        self,
        batch: Batch,
        places: Tensor,
        count: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        proposer = self.proposer.system
        assert isinstance(proposer, Fill)
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[torch.arange(len(batch), device=places.device), places] = True
        proposed = proposer.fill(batch, masked, generator=generator).log_probs.exp()
        weights = torch.zeros_like(proposed)
        ordinary = ordinary_token_ids(proposer.vocabulary).to(places.device)
        weights[:, ordinary] = proposed[:, ordinary]
        return sample_by_weights(weights, count, generator=generator)


def sample_by_weights(
    weights: Tensor, count: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """(B, count) samples in proportion to weights (B, V), by inverting their cumulative sum."""
    sums = weights.double().cumsum(-1)
    drawn = sample_uniform((len(weights), count), weights.device, generator=generator).double()
    # Strictly below the total, and past all tokens of weight zero.
    return torch.searchsorted(sums, drawn * sums[:, -1:], right=True)
