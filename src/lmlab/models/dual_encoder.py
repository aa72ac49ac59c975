"""Questions and documents in one space, told apart from those of the same batch (DPR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lmlab.backbones.text_encoder import PooledTextEncoder
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.inverse_cloze import InverseClozeTask, QuestionDocumentPairs

SCORING_NEGATIVES = 64
"""Documents of the training split that a text is held against when it is scored."""


class NegativeMiner(Protocol):
    """What finds wrong documents for questions, beside those of the batch."""

    def setup_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Shown the documents of the training split before training, with their symbols."""
        ...

    def find(self, questions: Batch, own: Batch) -> Batch | None:
        """Some documents, none of which answers its question as `own` (B) do; None for none."""
        ...


class DualEncoder(System):
    """score(x, z) = q(x) · d(z), learnt by finding z among the documents of its batch.

        loss = -Σ_i log [exp score(x_i, z_i) / Σ_j exp score(x_i, z_j)]   (Karpukhin et al. 2020)

    with z_j also the hard negatives of all its questions, where `negatives` finds some. A text that
    is given a question is its document; one that is given none is cut into a question and a
    document (inverse cloze, Lee et al. 2019). Cost of a batch: B passes of each encoder and
    B² · width. With many processes each has the documents of its own share alone. A few documents
    of the training split are kept, for scores that depend on no batch to have something to choose
    from.
    """

    validation_metric = "loss"
    others: Tensor
    """(R, length) tokens of those documents."""
    reference_lengths: Tensor
    """(R,)"""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        questions: PooledTextEncoder,
        documents: PooledTextEncoder,
        cloze: InverseClozeTask,
        length: int,
        negatives: NegativeMiner | None = None,
    ) -> None:
        """`length`: of the longest text."""
        super().__init__()
        assert questions.width == documents.width, "one space for both"
        self.vocabulary = vocabulary
        self.questions = questions
        self.documents = documents
        self.cloze = cloze
        self.negatives = negatives
        self.window = length - 1
        self.register_buffer("others", torch.zeros(SCORING_NEGATIVES, length, dtype=torch.int32))
        self.register_buffer("reference_lengths", torch.zeros(SCORING_NEGATIVES, dtype=torch.int64))

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        """Keep some of the training split, evenly spread over it."""
        count = len(offsets) - 1

        def text(number: int) -> list[int]:
            start = [] if self.vocabulary.start is None else [self.vocabulary.start]
            inner = tokens[offsets[number] : offsets[number + 1]].tolist()
            return [*start, *(each for each in inner if each != self.vocabulary.start)]

        chosen = np.linspace(0, count - 1, min(SCORING_NEGATIVES, count)).astype(int)
        for row, number in enumerate(chosen):
            kept = text(number)[: self.others.shape[1]]
            self.others[row, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
            self.reference_lengths[row] = len(kept)
        if self.negatives is not None:
            self.negatives.setup_documents([text(number) for number in range(count)])

    @property
    def loss_is_comparable(self) -> bool:
        """Not: how many documents there are to choose from differs from batch to batch."""
        return False

    def encode(self, batch: Batch) -> Tensor:
        """(B, width) d of each document."""
        vectors: Tensor = self.documents(batch)
        return vectors

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) q of each question."""
        vectors: Tensor = self.questions(batch)
        return vectors

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Summed over the questions of the batch."""
        cut = self._cut(batch, generator)
        more = None if self.negatives is None else self.negatives.find(cut.questions, batch)
        found = self._log_probs(cut, more).diagonal()
        return Loss(-found.sum(), torch.tensor(float(len(batch)), device=found.device)), None

    def log_prob(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        """log p(z | x) + log R, of a text z among itself and R documents of the training split.

        With R to infinity it is log p(z | x) / p(z), so that it compares over questions; which is
        no log-probability of the text. Of a text without a question it is the mean over all ways
        to cut half of it out, so it costs so many passes.
        """
        if not (self.reference_lengths > 0).any():
            raise UserError(
                "this encoder has met no documents to hold a text against, so that its score would "
                "say nothing; train it on some first (lmlab train dpr --base RUN …)."
            )
        if batch.condition is not None:
            cut = QuestionDocumentPairs(questions=batch.condition, documents=batch)
            found = self._log_ratio(cut, self._others(batch, cut=False))
        else:
            found = self._mean_log_ratio(batch)
        nothing = torch.zeros(batch.tokens[:, 1:].shape, device=found.device)
        return LogProbs(
            per_token=nothing, per_sequence=found, kind="unnormalised", whole_text_only=True
        )

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Which of the documents each question would choose."""
        cut = self._cut(batch, torch.Generator(device=batch.tokens.device).manual_seed(0))
        return {
            "retrieval": Capture(
                values=self._log_probs(cut).exp()[None],
                axes=("batch", "time", "source"),
                caption="P(document | question) among the documents of the batch; the diagonal is "
                "the question's own.",
                sums_to_one="source",
                titles={"time": "question", "source": "document of question"},
            )
        }

    def _cut(self, batch: Batch, generator: torch.Generator | None) -> QuestionDocumentPairs:
        if batch.condition is not None:
            return QuestionDocumentPairs(questions=batch.condition, documents=batch)
        return self.cloze.sample(batch, generator=generator)

    def _log_probs(self, cut: QuestionDocumentPairs, more: Batch | None = None) -> Tensor:
        """(B, C) log p(document | question) among those of the batch, and behind them `more`."""
        questions, vectors = self.encode_queries(cut.questions), self.encode(cut.documents)
        same = equal_rows(cut.documents, cut.documents)
        if more is not None:
            vectors = torch.cat([vectors, self.encode(more)])
            same = torch.cat([same, equal_rows(cut.documents, more)], 1)
        return in_batch_log_probs(questions @ vectors.T, same)

    def _others(self, batch: Batch, *, cut: bool) -> Batch:
        """The documents that were kept, of the form of those that are scored."""
        real = self.reference_lengths > 0
        lengths = self.reference_lengths[real]
        rows = torch.arange(len(lengths), device=lengths.device)
        others = Batch(tokens=self.others[real].long(), lengths=lengths, rows=rows)
        if not cut or not len(others):
            return others
        generator = torch.Generator(device=batch.tokens.device).manual_seed(0)
        return self.cloze.sample(others, generator=generator).documents

    def _log_ratio(self, cut: QuestionDocumentPairs, others: Batch) -> Tensor:
        """(B,) how much likelier a question's document is than others, in nats."""
        questions = self.encode_queries(cut.questions)
        own = (questions * self.encode(cut.documents)).sum(1, keepdim=True)
        scores = questions @ self.encode(others).T
        scores = scores.masked_fill(equal_rows(cut.documents, others), -torch.inf)
        count = 1 + (scores > -torch.inf).sum(1)
        return F.log_softmax(torch.cat([own, scores], 1), dim=1)[:, 0] + count.log()

    def _mean_log_ratio(self, batch: Batch) -> Tensor:
        total = torch.zeros(len(batch), device=batch.tokens.device)
        ways, others = torch.zeros_like(total), self._others(batch, cut=True)
        for real, cut in self.cloze.every(batch):
            total = total + self._log_ratio(cut, others) * real
            ways = ways + real
        return total / ways


def in_batch_log_probs(scores: Tensor, same: Tensor) -> Tensor:
    """(B, C) softmax over C ≥ B documents, each question's own being that at its place.

    `same` (B, C): documents with the same words as a question's own, which are no wrong answers to
    it: they are left out of the choice, but for the question's own.
    """
    own = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
    return F.log_softmax(scores.masked_fill(same & ~own, -torch.inf), dim=1)


def equal_rows(first: Batch, second: Batch) -> Tensor:
    """(B, C) bool: which rows of two batches hold the same tokens."""
    time = max(first.tokens.shape[1], second.tokens.shape[1])
    one, other = (
        F.pad(each.tokens.masked_fill(~each.mask(), -1), (0, time - each.tokens.shape[1]), value=-1)
        for each in (first, second)
    )
    return (one[:, None] == other[None]).all(-1)
