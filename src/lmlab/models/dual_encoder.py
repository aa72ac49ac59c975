"""Dual encoder (DPR): questions and documents in one space, trained with in-batch negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.backbones.sentence_encoders import PooledTextEncoder
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import Assembly, System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.objectives.inverse_cloze import InverseClozeTask, QuestionDocumentPairs


def initialise_from_base(system: RetrieverModel, base: System) -> None:
    """Copy the weights of a base: a model of the same kind, or a text encoder.

    Parameters that the base lacks keep their initialisation.
    """
    initialise_encoders(system.retriever.questions, system.retriever.documents, base)
    if isinstance(base, RetrieverModel):
        _copy(system, base)


def initialise_encoders(
    questions: PooledTextEncoder, documents: PooledTextEncoder, base: System
) -> None:
    """Copy both encoders of a dual encoder; or the backbone of another model into both."""
    if isinstance(base, DualEncoder | RetrieverModel):
        both = base if isinstance(base, DualEncoder) else base.retriever
        if questions.backbone is documents.backbone and (
            both.questions.backbone is not both.documents.backbone
        ):
            raise UserError(
                "--set shared=all does not apply to a base with two encoders; remove it."
            )
        _copy_whole(questions, both.questions)
        _copy_whole(documents, both.documents)
    elif isinstance(base, Assembly) and isinstance(base.backbone, type(questions.backbone)):
        _copy_whole(questions.backbone, base.backbone)
        _copy_whole(documents.backbone, base.backbone)
    else:
        raise UserError(
            "the base must be a dual encoder of questions and documents or a bidirectional "
            "Transformer encoder, and this run is neither; train one first (lmlab train dpr …)."
        )


def _copy_whole(own: nn.Module, other: nn.Module) -> None:
    """Copy all parameters of an encoder; the two sides must have the same ones.

    An encoder with half of the layers would give untrained vectors.
    """
    have, given = dict(own.named_parameters()), dict(other.named_parameters())
    if apart := sorted(have.keys() ^ given.keys()):
        side = "the base" if apart[0] in given else "the new run"
        raise UserError(
            f"the base has other layers or another projection (only {side} has {apart[0]}); "
            "remove the settings that change them, to use the base's."
        )
    _copy(own, other)


def _copy(own: nn.Module, other: nn.Module) -> None:
    """Copy all parameters by name; their shapes must match."""
    have, given = dict(own.named_parameters()), dict(other.named_parameters())
    for name in [name for name in have if name in given]:  # in order: reproducible errors
        if have[name].shape != given[name].shape:
            sizes = f"{name} is {tuple(given[name].shape)}, here {tuple(have[name].shape)}"
            todo = "remove the settings that change them, to use the base's"
            if "positions" in name and have[name].shape[1:] == given[name].shape[1:]:
                longest = len(given[name])
                todo = f"give --set length={longest}, and document_length no longer"
            raise UserError(f"the base has other sizes ({sizes}); {todo}.")
        have[name].data.copy_(given[name].data)


SCORING_NEGATIVES = 64
"""Documents of the training split that serve as negatives in scoring."""


class NegativeMiner(Protocol):
    """Hard-negative mining: finds wrong documents for questions, besides those of the batch."""

    def setup_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Receive the documents of the training split, special tokens included, before training."""
        ...

    def find(self, questions: Batch, own: Batch) -> Batch | None:
        """Documents none of which answers its question as `own` (B) do; None if there are none."""
        ...


class DualEncoder(System):
    """Dual encoder: score(x, z) = q(x) · d(z), trained by in-batch softmax over documents.

        loss = -Σ_i log [exp score(x_i, z_i) / Σ_j exp score(x_i, z_j)]   (Karpukhin et al. 2020)

    z_j includes the hard negatives of all questions if `negatives` finds any. A text with a
    condition is the document of that question; a text without one is split into a question and a
    document (inverse cloze task, Lee et al. 2019). Cost of a batch: B passes of each encoder and B²
    · width. In distributed training each process uses its own documents only. Some documents of the
    training split are stored as negatives for scores that must not depend on the batch.
    """

    validation_metric = "loss"
    others: Tensor
    """(R, length) tokens of the reference documents."""
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
        """`length`: that of the longest text."""
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
        """Store an evenly spaced subset of the training split as reference documents."""
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
        """False: the number of negatives differs between batches."""
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
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """Summed over the questions of the batch."""
        cut = self._cut(batch, generator)
        more = None if self.negatives is None else self.negatives.find(cut.questions, batch)
        found = self._log_probs(cut, more).diagonal()
        return Loss(-found.sum(), torch.tensor(float(len(batch)), device=found.device)), None

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """log p(z | x) + log R, with z a text among itself and R documents of the training split.

        As R grows it tends to log p(z | x) / p(z), comparable across questions but not a
        log-probability of the text. For a text without a question it is the mean over all inverse
        cloze splits that cut out half, one pass each.
        """
        if not (self.reference_lengths > 0).any():
            raise UserError(
                "this encoder has no documents to compare a text with, so it can't score one; "
                "train it on some first (lmlab train dpr --base RUN …)."
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
        """The distribution over documents for each question."""
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
        """(B, C) log p(document | question) over documents of the batch, then those of `more`."""
        questions, vectors = self.encode_queries(cut.questions), self.encode(cut.documents)
        same = equal_rows(cut.documents, cut.documents)
        if more is not None:
            vectors = torch.cat([vectors, self.encode(more)])
            same = torch.cat([same, equal_rows(cut.documents, more)], 1)
        return in_batch_log_probs(questions @ vectors.T, same)

    def _others(self, batch: Batch, *, cut: bool) -> Batch:
        """The reference documents in the format of the scored ones."""
        real = self.reference_lengths > 0
        lengths = self.reference_lengths[real]
        rows = torch.arange(len(lengths), device=lengths.device)
        others = Batch(tokens=self.others[real].long(), lengths=lengths, rows=rows)
        if not cut or not len(others):
            return others
        generator = torch.Generator(device=batch.tokens.device).manual_seed(0)
        return self.cloze.sample(others, generator=generator).documents

    def _log_ratio(self, cut: QuestionDocumentPairs, others: Batch) -> Tensor:
        """(B,) log-ratio of a question's document to the others, in nats."""
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
    """(B, C) log-softmax over C ≥ B documents; document i is the positive of question i.

    `same` (B, C): documents with the same tokens as a question's positive; these are not negatives
    and are excluded, except the positive itself.
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
