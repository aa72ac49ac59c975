"""Unigram counts of a corpus: word2vec's noise distribution and frequent-word subsampling."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary

TOKENS_PER_CHUNK = 1 << 24
"""Tokens that are counted at once, so that a corpus on disk is not loaded."""


def count_tokens(tokens: NDArray[np.generic], size: int) -> NDArray[np.int64]:
    """(V,) counts of each of `size` ids in a text, in memory or on disk."""
    counts = np.zeros(size, dtype=np.int64)
    for first in range(0, len(tokens), TOKENS_PER_CHUNK):
        part = np.asarray(tokens[first : first + TOKENS_PER_CHUNK], dtype=np.int64)
        counts += np.bincount(part, minlength=size)
    return counts


class UnigramDistribution(nn.Module):
    """Noise distribution for negative sampling, and subsampling of frequent words.

    Mikolov et al. 2013. With n(w) the count of a word and n its sum over all words:

        noise q(w) ∝ n(w)^power
        kept with probability min(1, (√(f/t) + 1) · t/f),   f = n(w)/n, t = sample

    as in word2vec and gensim. Special tokens and the unknown word are never noise, context or
    target in training, but the unknown word can occur in a text, so `log_prior` includes it. An
    unseen word counts once. Before `count`, all words count alike.
    """

    counts: Tensor
    is_word: Tensor
    is_boundary: Tensor

    def __init__(self, vocabulary: Vocabulary, *, power: float, sample: float) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.power = power
        self.sample = sample
        special_tokens = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown} - {None}
        is_word = torch.ones(vocabulary.size, dtype=torch.bool)
        is_word[sorted(special_tokens)] = False
        is_boundary = torch.zeros(vocabulary.size, dtype=torch.bool)
        is_boundary[[i for i in (vocabulary.start, vocabulary.end) if i is not None]] = True
        self.register_buffer("counts", torch.ones(vocabulary.size, dtype=torch.int64))
        self.register_buffer("is_word", is_word, persistent=False)
        self.register_buffer("is_boundary", is_boundary, persistent=False)

    def count(self, tokens: NDArray[np.generic]) -> None:
        """Set the counts from the ids of a text, in memory or on disk."""
        counts = count_tokens(tokens, self.vocabulary.size)
        self.counts.copy_(torch.from_numpy(np.maximum(counts, 1)))

    def noise(self) -> Tensor:
        """(V,) noise probability of each token; 0 for special tokens and the unknown word."""
        weights = self._weights().masked_fill(~self.is_word, 0.0)
        return weights / weights.sum()

    def log_prior(self) -> Tensor:
        """(V,) log of the same with the unknown word included; -inf at the special tokens."""
        weights = self._weights()
        predictable = self.is_word.clone()
        if self.vocabulary.unknown is not None:
            predictable[self.vocabulary.unknown] = True
        weights = weights.masked_fill(~predictable, 0.0)
        return (weights / weights.sum()).log().to(torch.get_default_dtype())

    def unknown_share(self) -> Tensor:
        """() share of the unknown word in the text; 0 if it does not occur, as a count is ≥ 1."""
        counts = self.counts.double()
        if self.vocabulary.unknown is None:
            return counts.new_zeros(())
        unknown = counts[self.vocabulary.unknown] - 1
        return unknown / (unknown + counts[self.is_word].sum())

    def keep_probabilities(self) -> Tensor:
        """(V,) probability that subsampling keeps a token; 0 for what is no word."""
        if self.sample <= 0:
            return self.is_word.double()
        counts = self.counts.double().masked_fill(~self.is_word, 0.0)
        threshold = self.sample * counts.sum()
        share = threshold / counts.clamp(min=1.0)
        probabilities = ((1 / share).sqrt() + 1) * share
        return probabilities.clamp(max=1.0).masked_fill(~self.is_word, 0.0)

    def sample_noise(
        self, shape: tuple[int, ...], *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Noise words of a shape."""
        sums = self.noise().cumsum(0)
        random = torch.rand(shape, generator=generator, device=sums.device, dtype=torch.float64)
        return torch.searchsorted(sums, random * sums[-1], right=True)

    def _weights(self) -> Tensor:
        return self.counts.double() ** self.power
