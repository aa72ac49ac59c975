"""Sequence tasks: one encoded sequence in, a head's scores for it, its tokens or its spans out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.loss import IGNORE_LABEL, Loss
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import group_by_length
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.finetuned import AnswersRows, TaskHeadModel, add_task_head
from lmlab.tasks.long_context.blocks import BlockQuery, TextBlock
from lmlab.tasks.task import EncodedExample, Row, Task, collate_examples

TOKENS_PER_BATCH = 8192


class SequenceTask(Task):
    """A task whose row is one sequence, or several windows or blocks of a long one."""

    proportion_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that are proportions of independent rows …"""
    mean_metrics: ClassVar[tuple[str, ...]] = ()
    """… and those that are other means over rows."""
    loss_unit: ClassVar[str] = "nats per answer"

    @classmethod
    def collect_labels(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """All labels of some rows, sorted."""
        return sorted({str(row["label"]) for row in rows})

    @classmethod
    def question(cls, row: Mapping[str, Any]) -> str | None:
        """The question about the text, if a row has one."""
        return str(row["question"]) if "question" in row else None

    @abstractmethod
    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
    ) -> EncodedExample:
        """The row as at most `max_length` tokens."""

    @abstractmethod
    def build(self, base: System, *, frozen: bool) -> System:
        """The model that is fine-tuned."""

    @abstractmethod
    def predict(
        self,
        system: System,
        tokenizer: Tokenizer,
        rows: Sequence[Row],
        encoded: Sequence[EncodedExample],
    ) -> list[Any]:
        """The answer of a model made by `build` to each row, in their order."""

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> Any:
        """The right answer, in the form of the predicted ones."""
        return str(row["label"])

    @classmethod
    @abstractmethod
    def compute_metrics(cls, expected: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        """The metrics of predicted answers."""


class HeadTask(SequenceTask):
    """A sequence task with a head on a pretrained model; it reads long texts too."""

    needs_tokens: ClassVar[bool] = False
    """Whether the head takes a vector per token rather than one per sequence."""

    @abstractmethod
    def with_labels(self, row: Mapping[str, Any], example: EncodedExample) -> EncodedExample:
        """An encoded text with the labels of its row, if the row has them.

        Raises AnswerTruncated if the answer is not in it.
        """

    def build(self, base: System, *, frozen: bool) -> System:
        return add_task_head(base, self, frozen=frozen)

    def make_head(self, width: int) -> nn.Module:
        """The head on hidden states of that width."""
        return nn.Linear(width, len(self.labels))

    def loss(self, scores: Tensor, labels: Tensor) -> Loss:
        """Minus the log-probability of the labels under the head's scores, and their count."""
        flat, targets = scores.flatten(0, -2), labels.flatten()
        total = F.cross_entropy(flat, targets, ignore_index=IGNORE_LABEL, reduction="sum")
        return Loss(total, (targets != IGNORE_LABEL).sum().float())

    def predict(
        self,
        system: System,
        tokenizer: Tokenizer,
        rows: Sequence[Row],
        encoded: Sequence[EncodedExample],
    ) -> list[Any]:
        """The answer of a model made by `build` to each row, in their order."""
        assert isinstance(system, AnswersRows)
        answers: dict[int, Any] = {}
        for group, examples, batch in _batches_by_length(system, encoded):
            with evaluation_mode(system):
                predicted = system.answers(batch, examples, [rows[index] for index in group])
            answers.update(zip(group, predicted, strict=True))
        return [answers[index] for index in range(len(rows))]

    @abstractmethod
    def decode_answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[Any]:
        """The answer to each row of the batch by the head's scores."""

    # ----- long texts

    def answer_spans(self, row: Row) -> list[tuple[int, int]]:
        """Characters [start, end) of the text that hold the answer, if known."""
        return []

    def block_queries(self, query: TextBlock, blocks: Sequence[TextBlock]) -> list[BlockQuery]:
        """The queries of a text in blocks: its question, or an empty one, about all of them."""
        return [BlockQuery(query=query, blocks=tuple(blocks))]

    def merge_block_answers(self, row: Row, answers: Sequence[tuple[Any, EncodedExample]]) -> Any:
        """Merge the answers to a row's queries, each with the example it was predicted from."""
        return answers[0][0]

    @abstractmethod
    def merge_window_scores(
        self, row: Row, windows: Sequence[EncodedExample], scores: Sequence[Tensor]
    ) -> Any:
        """Merge the head's scores for each window of a row's text into one answer."""


def head_scores(system: System, encoded: Sequence[EncodedExample]) -> list[Tensor]:
    """The head's scores for each: (labels,), or (T, labels) for its own T tokens."""
    assert isinstance(system, TaskHeadModel)
    scored: dict[int, Tensor] = {}
    for group, examples, batch in _batches_by_length(system, encoded):
        with evaluation_mode(system):
            scores = system.scores(batch).cpu()
        for index, example, row in zip(group, examples, scores, strict=True):
            scored[index] = row[: len(example.tokens)] if row.ndim == 2 else row
    return [scored[index] for index in range(len(encoded))]


def _batches_by_length(
    system: System, encoded: Sequence[EncodedExample]
) -> Iterator[tuple[list[int], list[EncodedExample], Batch]]:
    """Batches of examples of similar length: their indices, themselves, and collated."""
    for group in group_by_length([len(example.tokens) for example in encoded], TOKENS_PER_BATCH):
        examples = [encoded[index] for index in group]
        yield (
            group,
            examples,
            collate_examples(examples, system.vocabulary.pad).to(device_of(system)),
        )
