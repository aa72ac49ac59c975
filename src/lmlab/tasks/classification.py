"""Text and text-pair classification: softmax over labels of the text's vector; accuracy, F1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.metrics import accuracy, macro_f1, majority_accuracy
from lmlab.tasks.sequence_task import HeadTask
from lmlab.tasks.single_stage import SingleStageTask
from lmlab.tasks.task import EncodedExample, Row, encode_texts


class Classification(HeadTask, SingleStageTask):
    """Text classification: p(label | text) = softmax(W h + b), h the vector of the text.

    A row may have a `question`, which is encoded before the text.
    """

    name = "classify"
    fields: ClassVar[Mapping[str, str]] = {"text": "the text", "label": "its label"}
    text_field: ClassVar[str | None] = "text"
    can_prompt = True
    proportion_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    texts: ClassVar[tuple[str, ...]] = ("text",)
    """The fields that are encoded, in this order."""

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
    ) -> EncodedExample:
        question, texts = self.question(row), [str(row[name]) for name in self.texts]
        texts = texts if question is None else [question, *texts]
        return self.with_labels(row, encode_texts(texts, tokenizer, vocabulary, max_length))

    def with_labels(self, row: Mapping[str, Any], example: EncodedExample) -> EncodedExample:
        labels = [self.label_index(str(row["label"]))] if "label" in row else []
        return replace(example, labels=labels)

    def decode_answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[str]:
        return [self.labels[number] for number in scores.argmax(-1).tolist()]

    def merge_window_scores(
        self, row: Row, windows: Sequence[EncodedExample], scores: Sequence[Tensor]
    ) -> str:
        """The label of the greatest mean probability over the windows."""
        mean = torch.stack(list(scores)).softmax(-1).mean(0)
        return self.labels[int(mean.argmax())]

    @classmethod
    def compute_metrics(cls, expected: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        return {
            "accuracy": accuracy(expected, answers),
            "macro_f1": macro_f1(expected, answers),
            "majority": majority_accuracy(expected),
        }


class PairClassification(Classification):
    """Text-pair classification: p(label | text, other), both in one sequence."""

    name = "pair"
    text_field = None
    options = frozenset({"frozen"})
    fields: ClassVar[Mapping[str, str]] = {
        "text": "the first text",
        "other": "the second text",
        "label": "how they are related",
    }
    texts: ClassVar[tuple[str, ...]] = ("text", "other")
