"""Word2vec: word vectors trained by negative sampling (Mikolov et al. 2013)."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.system import Assembly
from lmlab.emissions.word2vec_emission import Word2VecEmission
from lmlab.objectives.negative_sampling import NegativeSampling


class Word2Vec(Assembly):
    """A vector for each word, and the distribution of a word given those around it."""

    objective: NegativeSampling
    emission: Word2VecEmission
    validation_metric = "loss"
    threads: int = 1
    """Stretches of text that compiled code learns from at once."""

    def vectors(self) -> Tensor:
        """(V, W) vectors of words as context: those that people call word vectors."""
        return self.emission.inputs

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked place, in reading order."""
        hidden = self.hidden(self.objective.fill_view(batch, masked)).values[masked]
        return Categorical(self.emission.log_probs(hidden))
