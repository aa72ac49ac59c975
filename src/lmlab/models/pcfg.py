"""A grammar as a system: a sentence's probability is the sum over its trees."""

from __future__ import annotations

from torch import Generator

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.parse_trees import Tree
from lmlab.layers import neural_pcfg as parsing
from lmlab.layers.neural_pcfg import (
    Grammar,
    NeuralGrammar,
    Sentences,
)
from lmlab.layers.pcfg_posterior import (
    best_trees,
    captures,
)


class TreeModel(System):
    """Exact `log_prob` by inside and prefix probabilities; draws whole sentences."""

    def __init__(self, rules: NeuralGrammar, vocabulary: Vocabulary, *, longest: int) -> None:
        super().__init__()
        self.vocabulary, self.rules, self.longest = vocabulary, rules, longest

    def _read(self, batch: Batch) -> tuple[Grammar, Sentences]:
        given = parsing.sentences(batch, self.vocabulary.end, self.longest)
        return self.rules.grammar(), given

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: Generator | None = None
    ) -> tuple[Loss, None]:
        """Minus the log-probability of whole sentences: the inside algorithm alone."""
        total = -parsing.log_probs_of_sentences(*self._read(batch)).sum()
        return Loss(total, total.new_tensor(float(batch.count))), None

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: Generator | None = None
    ) -> LogProbs:
        """By token, given the tokens before: ratios of prefix probabilities."""
        places = max(batch.tokens.shape[1] - 1, 0)
        by_token = parsing.log_probs_by_token(*self._read(batch), places)
        return LogProbs(per_token=by_token, kind="exact")

    def sample(
        self,
        rows: int,
        *,
        max_length: int,
        condition: Batch | None = None,
        generator: Generator | None = None,
    ) -> list[list[int]]:
        """Ids of sentences; one that is not over after `max_length` tokens has no end symbol."""
        drawn = parsing.draw_sentences(self.rules.grammar(), rows, max_length, generator)
        end = [] if self.vocabulary.end is None else [self.vocabulary.end]
        return [
            [*words, *end] if over and len(words) < max_length else words for words, over in drawn
        ]

    def best_tree(self, batch: Batch) -> list[Tree | None]:
        """The most probable tree of each sentence, None where it has no words."""
        return best_trees(*self._read(batch))

    def reveal(self, batch: Batch) -> dict[str, Capture]:
        return captures(*self._read(batch))
