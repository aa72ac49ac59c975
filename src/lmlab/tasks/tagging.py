"""Tagging: a label for each word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import IGNORE_LABEL
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.metrics import accuracy, entity_f1, majority_accuracy
from lmlab.tasks.task import EncodedExample, Task, encode_texts

OUTSIDE_TAG = "O"
"""The tag of words that belong to no mention, and of those behind where a text is cut."""


class Tagging(Task):
    """p(tag | word in its sentence) = softmax(W h + b), h the vector of the word's first token."""

    name = "tag"
    fields: ClassVar[Mapping[str, str]] = {
        "words": "the words, a list",
        "tags": "a tag for each: B-KIND begins a mention, I-KIND goes on with it, O is outside",
    }
    lists: ClassVar[tuple[str, ...]] = ("words", "tags")
    needs_tokens: ClassVar[bool] = True

    @classmethod
    def check_row(cls, row: Any) -> dict[str, Any]:
        checked = super().check_row(row)
        words, tags = checked["words"], checked["tags"]
        if not (isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags)):
            raise UserError("words and tags are lists of the same length in a row of tag.")
        if strange := [each for each in (*words, *tags) if not isinstance(each, str)]:
            raise UserError(f"words and tags are texts, and {strange[0]!r} came.")
        return checked

    @classmethod
    def collect_labels(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return sorted({OUTSIDE_TAG, *(str(tag) for row in rows for tag in row["tags"])})

    @classmethod
    def text(cls, row: Mapping[str, Any]) -> str:
        return " ".join(str(word) for word in row["words"])

    @classmethod
    def question(cls, row: Mapping[str, Any]) -> None:
        return None

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
    ) -> EncodedExample:
        read = encode_texts([self.text(row)], tokenizer, vocabulary, longest)
        return self.with_labels(row, read)

    def with_labels(self, row: Mapping[str, Any], read: EncodedExample) -> EncodedExample:
        words = [str(word) for word in row["words"]]
        tags = [str(tag) for tag in row.get("tags", [])]
        labels = [IGNORE_LABEL] * len(read.tokens)
        for word, place in enumerate(first_tokens(words, read)):
            if place is not None and tags:
                labels[place] = self.number(tags[word])
        return replace(read, labels=labels)

    def answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[list[str]]:
        best = scores.argmax(-1).tolist()
        answers = []
        for chosen, read, row in zip(best, encoded, rows, strict=True):
            places = first_tokens([str(word) for word in row["words"]], read)
            answers.append([OUTSIDE_TAG if p is None else self.labels[chosen[p]] for p in places])
        return answers

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> list[str]:
        return [str(tag) for tag in row["tags"]]

    @classmethod
    def measure(cls, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        right = [tag for tags in expected for tag in tags]
        given = [tag for tags in found for tag in tags]
        return {
            "f1": entity_f1(expected, found),
            "accuracy": accuracy(right, given),
            "majority": majority_accuracy(right),
        }


def first_tokens(words: Sequence[str], read: EncodedExample) -> list[int | None]:
    """The place of each word's first token; None where the text was cut before it."""
    begins = [end - len(word) for end, word in zip(_ends(words), words, strict=True)]
    places: dict[int, int] = {}
    word = 0
    for place, (low, high) in enumerate(read.spans):
        if low == high:
            continue
        while word + 1 < len(words) and begins[word + 1] < high:
            word += 1
        if begins[word] < high:
            places.setdefault(word, place)
    return [places.get(number) for number in range(len(words))]


def _ends(words: Sequence[str]) -> list[int]:
    """Where each word ends in the words joined by spaces."""
    return [end - 1 for end in accumulate(len(word) + 1 for word in words)]
