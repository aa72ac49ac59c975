"""Sequence tagging task: softmax tag of each word from its first token; windows are merged."""

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
from lmlab.tasks.long_context.blocks import BlockQuery, TextBlock
from lmlab.tasks.metrics import accuracy, entity_f1, majority_accuracy
from lmlab.tasks.sequence_task import HeadTask
from lmlab.tasks.single_stage import SingleStageTask
from lmlab.tasks.task import EncodedExample, Row, encode_texts

OUTSIDE_TAG = "O"
"""The tag of words outside of entities, and of truncated words."""


class Tagging(HeadTask, SingleStageTask):
    """Sequence tagging: p(tag | word, sentence) = softmax(W h + b), h of the word's first token."""

    name = "tag"
    text_field = "words"
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
            raise UserError("words and tags are lists of the same length in a row.")
        if invalid := [item for item in (*words, *tags) if not isinstance(item, str)]:
            raise UserError(f"words and tags must be texts, got {invalid[0]!r}.")
        return checked

    @classmethod
    def row_from_text(cls, text: str) -> Row:
        return {"words": text.split()}

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
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
    ) -> EncodedExample:
        example = encode_texts([self.text(row)], tokenizer, vocabulary, max_length)
        return self.with_labels(row, example)

    def with_labels(self, row: Mapping[str, Any], example: EncodedExample) -> EncodedExample:
        words = [str(word) for word in row["words"]]
        tags = [str(tag) for tag in row.get("tags", [])]
        labels = [IGNORE_LABEL] * len(example.tokens)
        for word, position in enumerate(first_tokens(words, example)):
            if position is not None and tags:
                labels[position] = self.label_index(tags[word])
        return replace(example, labels=labels)

    def decode_answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[list[str]]:
        best = scores.argmax(-1).tolist()
        answers = []
        for best_labels, example, row in zip(best, encoded, rows, strict=True):
            positions = first_tokens([str(word) for word in row["words"]], example)
            tags = [OUTSIDE_TAG if p is None else self.labels[best_labels[p]] for p in positions]
            answers.append(tags)
        return answers

    def block_queries(self, query: TextBlock, blocks: Sequence[TextBlock]) -> list[BlockQuery]:
        """Each block in turn is the query, whose words are tagged; the others are its context."""
        return [
            BlockQuery(
                query=block,
                blocks=tuple(other for other in blocks if other is not block),
                span=block.span,
            )
            for block in blocks
        ]

    def merge_block_answers(
        self, row: Row, answers: Sequence[tuple[Any, EncodedExample]]
    ) -> list[str]:
        """Each word's tag from the query that contains it."""
        words = [str(word) for word in row["words"]]
        tags = [OUTSIDE_TAG] * len(words)
        for answer, example in answers:
            for word, position in enumerate(first_tokens(words, example)):
                tags[word] = tags[word] if position is None else answer[word]
        return tags

    def merge_window_scores(
        self, row: Row, windows: Sequence[EncodedExample], scores: Sequence[Tensor]
    ) -> list[str]:
        return tags_of_windows([str(word) for word in row["words"]], windows, scores, self.labels)

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> list[str]:
        return [str(tag) for tag in row["tags"]]

    @classmethod
    def compute_metrics(cls, expected: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        gold = [tag for tags in expected for tag in tags]
        predicted = [tag for tags in answers for tag in tags]
        return {
            "f1": entity_f1(expected, answers),
            "accuracy": accuracy(gold, predicted),
            "majority": majority_accuracy(gold),
        }


def first_tokens(words: Sequence[str], example: EncodedExample) -> list[int | None]:
    """The position of each word's first token; None if the text was truncated before it."""
    # The words are joined by spaces.
    starts = list(accumulate((len(word) + 1 for word in words[:-1]), initial=0))
    positions: dict[int, int] = {}
    word = 0
    for position, (low, high) in enumerate(example.spans):
        if low == high:
            continue
        while word + 1 < len(words) and starts[word + 1] < high:
            word += 1
        if starts[word] < high:
            positions.setdefault(word, position)
    return [positions.get(number) for number in range(len(words))]


def tags_of_windows(
    words: Sequence[str],
    windows: Sequence[EncodedExample],
    scores: Sequence[Tensor],
    labels: Sequence[str],
) -> list[str]:
    """The tag of each word in the window where it is furthest from both ends."""
    tags, depth = [OUTSIDE_TAG] * len(words), [-1] * len(words)
    for window, window_scores in zip(windows, scores, strict=True):
        best = window_scores.argmax(-1).tolist()
        for word, position in enumerate(first_tokens(words, window)):
            if position is None:
                continue
            margin = min(position, len(window.tokens) - 1 - position)
            if margin > depth[word]:
                depth[word], tags[word] = margin, labels[best[position]]
    return tags
