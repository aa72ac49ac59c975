"""Dual encoder (DPR), in-batch and mined hard negatives; initialising encoders from a base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.backbones.sentence_encoders import PooledTextEncoder
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import System, TrainableSystem
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.objectives.inverse_cloze import InverseClozeTask, QuestionDocumentPairs

SCORING_NEGATIVES = 64
"""Documents of the training split that serve as negatives in scoring."""


class NegativeMiner(Protocol):
    """Hard-negative mining: finds wrong documents for questions, besides those of the batch."""

    def setup_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Receive the documents of the training split, special tokens included, before training."""
        ...

    def find(self, questions: Batch, positives: Batch) -> Batch | None:
        """Documents that do not answer the questions as `positives` (B) do; None without any."""
        ...


class DualEncoder(TrainableSystem):
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
        self.register_buffer("others", torch.zeros(SCORING_NEGATIVES, length, dtype=torch.int32))
        self.register_buffer("reference_lengths", torch.zeros(SCORING_NEGATIVES, dtype=torch.int64))

    @property
    def window(self) -> int | None:
        """A text is encoded with its last token."""
        return self.others.shape[1] - 1

    def lengthening_hint(self, tokens: int) -> str:
        return f"train it with --set length={self.others.shape[1] + tokens}"

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        """Store an evenly spaced subset of the training split as reference documents."""
        count = len(offsets) - 1

        def text(number: int) -> list[int]:
            start = [] if self.vocabulary.start is None else [self.vocabulary.start]
            inner = tokens[offsets[number] : offsets[number + 1]].tolist()
            return [*start, *(token for token in inner if token != self.vocabulary.start)]

        chosen = np.linspace(0, count - 1, min(SCORING_NEGATIVES, count)).astype(int)
        for row, number in enumerate(chosen):
            reference = text(number)[: self.others.shape[1]]
            self.others[row, : len(reference)] = torch.tensor(reference, dtype=torch.int32)
            self.reference_lengths[row] = len(reference)
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
        pairs = self._pairs(batch, generator)
        negatives = None if self.negatives is None else self.negatives.find(pairs.questions, batch)
        positive = self._log_probs(pairs, negatives).diagonal()
        return Loss(-positive.sum(), torch.tensor(float(len(batch)), device=positive.device)), None

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
            pairs = QuestionDocumentPairs(questions=batch.condition, documents=batch)
            log_ratios = self._log_ratio(pairs, self._reference_documents(batch, split=False))
        else:
            log_ratios = self._mean_log_ratio(batch)
        zeros = torch.zeros(batch.tokens[:, 1:].shape, device=log_ratios.device)
        return LogProbs(
            per_token=zeros, per_sequence=log_ratios, kind="unnormalised", whole_text_only=True
        )

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The distribution over documents for each question."""
        pairs = self._pairs(batch, torch.Generator(device=batch.tokens.device).manual_seed(0))
        return {
            "retrieval": Capture(
                values=self._log_probs(pairs).exp()[None],
                axes=("batch", "time", "source"),
                caption="P(document | question) among the documents of the batch; the diagonal is "
                "the question's own.",
                sums_to_one="source",
                titles={"time": "question", "source": "document of question"},
            )
        }

    def _pairs(self, batch: Batch, generator: torch.Generator | None) -> QuestionDocumentPairs:
        if batch.condition is not None:
            return QuestionDocumentPairs(questions=batch.condition, documents=batch)
        return self.cloze.sample(batch, generator=generator)

    def _log_probs(self, pairs: QuestionDocumentPairs, negatives: Batch | None = None) -> Tensor:
        """(B, C) log p(document | question) over documents of the batch, then the `negatives`."""
        questions, vectors = self.encode_queries(pairs.questions), self.encode(pairs.documents)
        same = equal_rows(pairs.documents, pairs.documents)
        if negatives is not None:
            vectors = torch.cat([vectors, self.encode(negatives)])
            same = torch.cat([same, equal_rows(pairs.documents, negatives)], 1)
        return in_batch_log_probs(questions @ vectors.T, same)

    def _reference_documents(self, batch: Batch, *, split: bool) -> Batch:
        """The reference documents in the format of the scored ones."""
        used = self.reference_lengths > 0
        lengths = self.reference_lengths[used]
        rows = torch.arange(len(lengths), device=lengths.device)
        others = Batch(tokens=self.others[used].long(), lengths=lengths, rows=rows)
        if not split or not len(others):
            return others
        generator = torch.Generator(device=batch.tokens.device).manual_seed(0)
        return self.cloze.sample(others, generator=generator).documents

    def _log_ratio(self, pairs: QuestionDocumentPairs, others: Batch) -> Tensor:
        """(B,) log-ratio of a question's document to the others, in nats."""
        questions = self.encode_queries(pairs.questions)
        positive_scores = (questions * self.encode(pairs.documents)).sum(1, keepdim=True)
        scores = questions @ self.encode(others).T
        scores = scores.masked_fill(equal_rows(pairs.documents, others), -torch.inf)
        count = 1 + (scores > -torch.inf).sum(1)
        return F.log_softmax(torch.cat([positive_scores, scores], 1), dim=1)[:, 0] + count.log()

    def _mean_log_ratio(self, batch: Batch) -> Tensor:
        total = torch.zeros(len(batch), device=batch.tokens.device)
        splits, others = torch.zeros_like(total), self._reference_documents(batch, split=True)
        for valid, pairs in self.cloze.every(batch):
            total = total + self._log_ratio(pairs, others) * valid
            splits = splits + valid
        return total / splits


def in_batch_log_probs(scores: Tensor, same: Tensor) -> Tensor:
    """(B, C) log-softmax over C ≥ B documents; document i is the positive of question i.

    `same` (B, C): documents with the same tokens as a question's positive; these are not negatives
    and are excluded, except the positive itself.
    """
    is_positive = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
    return F.log_softmax(scores.masked_fill(same & ~is_positive, -torch.inf), dim=1)


def equal_rows(first: Batch, second: Batch) -> Tensor:
    """(B, C) bool: which rows of two batches hold the same tokens."""
    time = max(first.tokens.shape[1], second.tokens.shape[1])
    one, other = (
        F.pad(
            batch.tokens.masked_fill(~batch.mask(), -1), (0, time - batch.tokens.shape[1]), value=-1
        )
        for batch in (first, second)
    )
    return (one[:, None] == other[None]).all(-1)


def initialise_from_base(system: RetrieverModel, base: System) -> None:
    """Copy the weights of a base: a model of the same kind, or a text encoder.

    Parameters that the base lacks keep their initialisation.
    """
    initialise_encoders(system.retriever.questions, system.retriever.documents, base)
    if isinstance(base, RetrieverModel):
        _copy_parameters(system, base)


def initialise_encoders(
    questions: PooledTextEncoder, documents: PooledTextEncoder, base: System
) -> None:
    """Copy both encoders of a dual encoder; or the backbone of another model into both."""
    if isinstance(base, DualEncoder | RetrieverModel):
        trained = base if isinstance(base, DualEncoder) else base.retriever
        if questions.backbone is documents.backbone and (
            trained.questions.backbone is not trained.documents.backbone
        ):
            raise UserError(
                "--set shared=all does not apply to a base with two encoders; remove it."
            )
        _copy_encoder(questions, trained.questions)
        _copy_encoder(documents, trained.documents)
    elif isinstance(base, Assembly) and isinstance(base.backbone, type(questions.backbone)):
        _copy_encoder(questions.backbone, base.backbone)
        _copy_encoder(documents.backbone, base.backbone)
    else:
        raise UserError(
            "the base must be a dual encoder of questions and documents or a bidirectional "
            "Transformer encoder, and this run is neither; train one first (lmlab train dpr …)."
        )


def _copy_encoder(module: nn.Module, source: nn.Module) -> None:
    """Copy all parameters of an encoder; the two sides must have the same ones.

    An encoder with half of the layers would give untrained vectors.
    """
    target, trained = dict(module.named_parameters()), dict(source.named_parameters())
    if mismatched := sorted(target.keys() ^ trained.keys()):
        side = "the base" if mismatched[0] in trained else "the new run"
        raise UserError(
            f"the base has other layers or another projection (only {side} has {mismatched[0]}); "
            "remove the settings that change them, to use the base's."
        )
    _copy_parameters(module, source)


def _copy_parameters(module: nn.Module, source: nn.Module) -> None:
    """Copy all parameters by name; their shapes must match."""
    target, trained = dict(module.named_parameters()), dict(source.named_parameters())
    for name in [name for name in target if name in trained]:  # in order: reproducible errors
        if target[name].shape != trained[name].shape:
            sizes = f"{name} is {tuple(trained[name].shape)}, here {tuple(target[name].shape)}"
            advice = "remove the settings that change them, to use the base's"
            if "positions" in name and target[name].shape[1:] == trained[name].shape[1:]:
                max_length = len(trained[name])
                advice = f"give --set length={max_length}, and document_length no longer"
            raise UserError(f"the base has other sizes ({sizes}); {advice}.")
        target[name].data.copy_(trained[name].data)
