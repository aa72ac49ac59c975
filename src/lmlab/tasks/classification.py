"""Classification: one label for a text, or for two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.metrics import accuracy, macro_f1, majority_accuracy
from lmlab.tasks.task import EncodedExample, Task, encode_texts


class Classification(Task):
    """p(label | text) = softmax(W h + b), h the vector of the text.

    A row may have a `question`: it is read before the text.
    """

    name = "classify"
    fields: ClassVar[Mapping[str, str]] = {"text": "the text", "label": "its label"}
    proportion_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    texts: ClassVar[tuple[str, ...]] = ("text",)
    """The fields that are read, in this order."""

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
    ) -> EncodedExample:
        question, texts = self.question(row), [str(row[name]) for name in self.texts]
        texts = texts if question is None else [question, *texts]
        return self.with_labels(row, encode_texts(texts, tokenizer, vocabulary, longest))

    def with_labels(self, row: Mapping[str, Any], read: EncodedExample) -> EncodedExample:
        labels = [self.number(str(row["label"]))] if "label" in row else []
        return replace(read, labels=labels)

    def answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[str]:
        return [self.labels[number] for number in scores.argmax(-1).tolist()]

    @classmethod
    def measure(cls, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        return {
            "accuracy": accuracy(expected, found),
            "macro_f1": macro_f1(expected, found),
            "majority": majority_accuracy(expected),
        }


class PairClassification(Classification):
    """p(label | text, other): both in one sequence, parted by the end symbol."""

    name = "pair"
    fields: ClassVar[Mapping[str, str]] = {
        "text": "the first text",
        "other": "the second text",
        "label": "how they are related",
    }
    texts: ClassVar[tuple[str, ...]] = ("text", "other")
