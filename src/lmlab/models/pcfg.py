"""Probabilistic context-free grammar: a sentence's probability is the sum over its parse trees."""

from __future__ import annotations

from torch import Generator

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.parse_trees import ParseTree
from lmlab.layers import neural_pcfg as parsing
from lmlab.layers.neural_pcfg import (
    NeuralPCFG,
    PCFGTables,
    SentenceBatch,
)
from lmlab.layers.pcfg_posterior import (
    posterior_captures,
    viterbi_trees,
)


class PCFG(System):
    """PCFG with exact `log_prob` by inside and prefix probabilities; samples whole sentences."""

    def __init__(self, rules: NeuralPCFG, vocabulary: Vocabulary, *, longest: int) -> None:
        super().__init__()
        self.vocabulary, self.rules, self.max_length = vocabulary, rules, longest

    def _read(self, batch: Batch) -> tuple[PCFGTables, SentenceBatch]:
        given = parsing.extract_sentences(batch, self.vocabulary.end, self.max_length)
        return self.rules.grammar(), given

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: Generator | None = None
    ) -> tuple[Loss, None]:
        """Minus the log-probability of whole sentences, by the inside algorithm."""
        total = -parsing.sentence_log_probs(*self._read(batch)).sum()
        return Loss(total, total.new_tensor(float(batch.count))), None

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: Generator | None = None
    ) -> LogProbs:
        """Per token, given the tokens before: ratios of prefix probabilities."""
        places = max(batch.tokens.shape[1] - 1, 0)
        by_token = parsing.token_log_probs(*self._read(batch), places)
        return LogProbs(per_token=by_token, kind="exact")

    def sample(
        self,
        rows: int,
        *,
        max_length: int,
        condition: Batch | None = None,
        generator: Generator | None = None,
    ) -> list[list[int]]:
        """Ids of sentences; one truncated at `max_length` tokens has no end token."""
        drawn = parsing.sample_sentences(self.rules.grammar(), rows, max_length, generator)
        end = [] if self.vocabulary.end is None else [self.vocabulary.end]
        return [
            [*words, *end] if over and len(words) < max_length else words for words, over in drawn
        ]

    def best_tree(self, batch: Batch) -> list[ParseTree | None]:
        """Viterbi parse of each sentence, None where it has no words."""
        return viterbi_trees(*self._read(batch))

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        return posterior_captures(*self._read(batch))
