"""GloVe (Pennington et al. 2014): word vectors by weighted least squares on co-occurrences."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class CooccurrenceOptions:
    """How co-occurrences are counted and visited."""

    window: int = field(default=10, metadata={"at_least": 1})
    """Maximum distance of two words that occur together, on either side; weighted by 1/distance."""
    memory_mb: float = field(default=256.0, metadata={"above": 0})
    """MB of co-occurrence counts in memory; more are sorted on disk."""
    pairs_per_step: int = field(default=4096, metadata={"at_least": 1})
    """Pairs of words in a step of AdaGrad, whose gradients are summed."""


class GloVe(System):
    """GloVe: w_i · w̃_j + b_i + b̃_j fits log X_ij, the log count of words i and j together.

        J = Σ_ij f(X_ij) (w_i · w̃_j + b_i + b̃_j - log X_ij)²,   f(x) = min(1, (x / x_max)^α)

    over pairs with X_ij > 0. The vector of a word is w + w̃. It is no distribution over texts.
    Initialised as the authors' code: all numbers uniform in ±1/2W.
    """

    fitting = "cooccurrence"

    def __init__(
        self,
        vocabulary: Vocabulary,
        width: int,
        *,
        x_max: float,
        alpha: float,
        counting: CooccurrenceOptions,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.x_max = x_max
        self.alpha = alpha
        self.counting = counting

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter((torch.rand(*shape) - 0.5) / width)

        self.words = uniform(vocabulary.size, width)
        self.contexts = uniform(vocabulary.size, width)
        self.word_bias = uniform(vocabulary.size)
        self.context_bias = uniform(vocabulary.size)

    @property
    def loss_unit(self) -> str:
        """Of the training loss, J / number of pairs."""
        return "weighted squared error per pair"

    def vectors(self) -> Tensor:
        """(V, W) w + w̃, as in the paper."""
        return self.words + self.contexts

    def weight(self, counts: Tensor) -> Tensor:
        """(N,) f(X)."""
        return (counts / self.x_max).pow(self.alpha).clamp(max=1.0)

    def errors(self, words: Tensor, contexts: Tensor, counts: Tensor) -> Tensor:
        """(N,) w_i · w̃_j + b_i + b̃_j - log X_ij."""
        products = (self.words[words] * self.contexts[contexts]).sum(-1)
        return products + self.word_bias[words] + self.context_bias[contexts] - counts.log()

    def least_squares_loss(self, words: Tensor, contexts: Tensor, counts: Tensor) -> Tensor:
        """J over the given pairs (N,)."""
        return (self.weight(counts) * self.errors(words, contexts, counts).square()).sum()
