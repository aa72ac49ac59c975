"""Word2vec (Mikolov et al. 2013): word vectors, and p(word | context) for scores and filling."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.parts import Backbone
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.word2vec_emission import Word2VecEmission
from lmlab.objectives.context_windows import ContextWindows


class Word2Vec(Assembly):
    """Word2vec: a vector for each word, and the distribution of a word given its context."""

    objective: ContextWindows
    emission: Word2VecEmission
    validation_metric = "loss"
    scorer_kind = "masked"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Word2VecEmission,
        objective: ContextWindows,
        fitting: str = "gradient",
        threads: int = 1,
    ) -> None:
        """`threads`: text segments that compiled code trains on in parallel."""
        super().__init__(
            vocabulary=vocabulary,
            backbone=backbone,
            emission=emission,
            objective=objective,
            fitting=fitting,
        )
        self.threads = threads

    def vectors(self) -> Tensor:
        """(V, W) context (input) vectors: those commonly called word vectors."""
        return self.emission.input_vectors()

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked position, in reading order."""
        hidden = self.hidden(self.objective.fill_view(batch, masked)).values[masked]
        return Categorical(self.emission.log_probs(hidden))
