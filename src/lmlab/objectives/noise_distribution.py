"""Noise distribution of sampled losses: smoothed unigram frequencies."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary

COUNT_CHUNK = 1 << 24
"""Tokens counted at once, so that a corpus on disk is never loaded whole."""
WEIGHT_RESOLUTION = 1 << 20
"""Weights are integer multiples of 1 / this: powers of counts keep six digits."""

RANDOM_RANGE = 1 << 62
"""Range of uniform integers, reduced modulo the total weight: a relative bias of total / 2^64."""


class NoiseDistribution(nn.Module):
    """Noise q(w) ∝ n(w)^power, n(w) the count of w among the training targets, at least 1.

    Power 1 is the unigram distribution, 0 the uniform one, 0.75 word2vec's (Mikolov et al. 2013).
    Unseen tokens count once: a token never sampled as noise would keep its initial score. Before
    the data is counted q is uniform. Weights are integers, stored as cumulative sums: sampling
    costs O(log V), a probability two look-ups, and no step iterates over the vocabulary.
    """

    cumulative: Tensor

    def __init__(self, vocabulary: Vocabulary, *, power: float) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.power = power
        self.register_buffer("cumulative", torch.zeros(vocabulary.size, dtype=torch.long))
        self.count(np.zeros(0, dtype=np.int64))

    def count(self, tokens: NDArray[np.generic]) -> None:
        """Estimate the distribution from the token ids of a text."""
        counts = np.zeros(self.vocabulary.size, dtype=np.int64)
        for first in range(0, len(tokens), COUNT_CHUNK):
            part = np.asarray(tokens[first : first + COUNT_CHUNK], dtype=np.int64)
            counts += np.bincount(part, minlength=len(counts))
        weights = np.rint(
            np.maximum(counts, 1).astype(np.float64) ** self.power * WEIGHT_RESOLUTION
        )
        weights[list(self.vocabulary.unpredictable)] = 0
        self.cumulative.copy_(torch.from_numpy(weights.astype(np.int64).cumsum()))

    def sample(self, shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> Tensor:
        """Sample token ids of a shape, on the generator's device."""
        here = self.cumulative.device
        home = here if generator is None else generator.device
        total = int(self.cumulative[-1])
        # torch.randint takes 32 bits modulo the range where that is below 2^28, which favours small
        # numbers by up to a sixteenth. A multiple of the total near 2^62 makes it take 64 bits.
        multiple = total * (RANDOM_RANGE // total)
        drawn = torch.randint(multiple, shape, generator=generator, device=home).to(here) % total
        return torch.searchsorted(self.cumulative, drawn, right=True)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """log q of each token, in the shape of `tokens`; -inf for tokens never predicted."""
        until = self.cumulative[tokens]
        before = torch.where(tokens > 0, self.cumulative[(tokens - 1).clamp(min=0)], 0)
        share = (until - before).to(torch.get_default_dtype()) / self.cumulative[-1]
        return share.log()

    def log_probs(self) -> Tensor:
        """(V,) log q of the whole vocabulary."""
        return self.log_prob(torch.arange(len(self.cumulative), device=self.cumulative.device))
