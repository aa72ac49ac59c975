"""Noise: the law by which tokens are drawn to tell those of the data from."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary

COUNT_CHUNK = 1 << 24
"""Tokens that are counted at once, so that a corpus on disk stays there."""
WEIGHT_RESOLUTION = 1 << 20
"""Weights are whole numbers of such parts of one: powers of counts keep six digits."""

RANDOM_RANGE = 1 << 62
"""Range of uniform integers, reduced modulo the total weight: a relative bias of total / 2^64."""


class NoiseDistribution(nn.Module):
    """q(w) ∝ n(w)^power, n(w) the times that w is predicted in the training split, at least once.

    Power 1 is the unigram law, 0 the uniform one, 0.75 word2vec's (Mikolov et al. 2013). A token
    that was never seen counts once: what noise never draws would keep the score it began with.
    Until the data is met all tokens count alike. Weights are whole numbers, kept as running sums,
    so that a draw costs O(log V) and a probability two look-ups: no step goes over the vocabulary.
    """

    cumulative: Tensor

    def __init__(self, vocabulary: Vocabulary, *, power: float) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.power = power
        self.register_buffer("cumulative", torch.zeros(vocabulary.size, dtype=torch.long))
        self.count(np.zeros(0, dtype=np.int64))

    def count(self, tokens: NDArray[np.generic]) -> None:
        """Take the law from the ids of a text."""
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
        """Token ids of a shape, drawn wherever the generator lives."""
        here = self.cumulative.device
        home = here if generator is None else generator.device
        total = int(self.cumulative[-1])
        # torch.randint takes 32 bits modulo the range where that is below 2^28, which favours small
        # numbers by up to a sixteenth. A multiple of the total near 2^62 makes it take 64 bits.
        multiple = total * (RANDOM_RANGE // total)
        drawn = torch.randint(multiple, shape, generator=generator, device=home).to(here) % total
        return torch.searchsorted(self.cumulative, drawn, right=True)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """log q of each token, of the shape of `tokens`; -inf where one is never predicted."""
        until = self.cumulative[tokens]
        before = torch.where(tokens > 0, self.cumulative[(tokens - 1).clamp(min=0)], 0)
        share = (until - before).to(torch.get_default_dtype()) / self.cumulative[-1]
        return share.log()

    def log_probs(self) -> Tensor:
        """(V,) log q of the whole vocabulary."""
        return self.log_prob(torch.arange(len(self.cumulative), device=self.cumulative.device))
