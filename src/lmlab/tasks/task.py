"""What a downstream task is: how its rows read, what is asked of a model, how it is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import IGNORE_LABEL, Loss
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer

ANSWER_TRUNCATED_LABEL = -101
"""The label of an answer that is not in what is read of its text: whoever answers can but guess."""


class AnswerTruncated(Exception):
    """What is asked for lies behind the greatest length that the system takes."""


@dataclass(frozen=True, kw_only=True)
class EncodedExample:
    """One example as a system reads it."""

    tokens: list[int]
    """`<s> … </s>`, two texts as `<s> … </s> … </s>`."""
    labels: list[int]
    """One for the sequence, one for each token, or the two ends of a span."""
    spans: list[tuple[int, int]]
    """Characters [start, end) of the text that each token stands for; (0, 0) for other tokens."""
    condition: list[int] | None = None
    given: list[int] = field(default_factory=list)
    """Where a text is to be written: `<s> … </s>` of the source, as it is read for that."""
    cut: bool = False
    """Whether the text was longer than the system takes."""


class Task:
    """A task with its labels; subclasses say the rest. Rows are JSON objects."""

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, str]]
    """What a row must have, and what each field means."""
    lists: ClassVar[tuple[str, ...]] = ()
    """The fields that are lists, of one text a word."""
    proportion_metrics: ClassVar[tuple[str, ...]] = ()
    """Measures that are shares of independent rows …"""
    means: ClassVar[tuple[str, ...]] = ()
    """… and those that are other means over rows."""
    needs_tokens: ClassVar[bool] = False
    """Whether it asks for a vector of each token, and not of the whole sequence."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels = tuple(labels)

    @classmethod
    def check_row(cls, row: Any) -> dict[str, Any]:
        """The row, or a UserError that says what is missing."""
        if not isinstance(row, dict):
            raise UserError(f"a row of {cls.name} is an object with {', '.join(cls.fields)}.")
        missing = [name for name in cls.fields if name not in row]
        if missing:
            raise UserError(
                f"a row of {cls.name} needs {', '.join(cls.fields)}, and {missing[0]} is missing."
            )
        for name in (*cls.fields, "question"):
            if name in row and name not in cls.lists:
                _check_field(name, row[name])
        return dict(row)

    @classmethod
    def collect_labels(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """All labels of some rows, sorted."""
        return sorted({str(row["label"]) for row in rows})

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
    ) -> EncodedExample:
        """The row as at most `longest` tokens."""
        raise TypeError(f"{type(self).__name__} does not define encode")

    def with_labels(self, row: Mapping[str, Any], read: EncodedExample) -> EncodedExample:
        """What was read of a row's text, with the labels of the row where it tells them.

        TooLong where the answer is not in it.
        """
        raise TypeError(f"{type(self).__name__} does not read long texts")

    @classmethod
    def text(cls, row: Mapping[str, Any]) -> str:
        """The text that may be long."""
        return str(row["text"])

    @classmethod
    def question(cls, row: Mapping[str, Any]) -> str | None:
        """What is asked of it, where anything is."""
        return str(row["question"]) if "question" in row else None

    def head(self, width: int) -> nn.Module:
        """What reads a hidden state of that width."""
        return nn.Linear(width, len(self.labels))

    def loss(self, scores: Tensor, labels: Tensor) -> Loss:
        """Minus the log-probability of the labels under the head's scores, and their count."""
        flat, asked = scores.flatten(0, -2), labels.flatten()
        total = F.cross_entropy(flat, asked, ignore_index=IGNORE_LABEL, reduction="sum")
        return Loss(total, (asked != IGNORE_LABEL).sum().float())

    def answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[Any]:
        """What the head's scores say of each row of the batch."""
        raise TypeError(f"{type(self).__name__} does not define answers")

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> Any:
        """The right answer, of the form that `answers` gives."""
        return str(row["label"])

    @classmethod
    def measure(cls, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        """How right the answers are."""
        raise TypeError(f"{cls.__name__} does not define measure")

    def number(self, label: str) -> int:
        """The number of a label; one that training did not have is a UserError."""
        if label not in self.labels:
            raise UserError(
                f"the label {label!r} does not come in the training rows, which have "
                f"{', '.join(self.labels[:8])}."
            )
        return self.labels.index(label)


def _check_field(name: str, value: Any) -> None:
    """A text must be one; a label may be a number too."""
    if not isinstance(value, (str, int) if name == "label" else str):
        raise UserError(f"{name} must be a text, and {json.dumps(value)[:60]} came.")


def special_tokens_of(vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """What stands before the first token and after the last."""
    end = [] if vocabulary.end is None else [vocabulary.end]
    return [vocabulary.opening], end


def encode_texts(
    texts: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
) -> EncodedExample:
    """`<s> first </s> second </s>`, without labels; spans are those of the last text.

    Where it is too long the longest text loses tokens at its end.
    """
    start, end = special_tokens_of(vocabulary)
    coded = [tokenizer.encode_with_offsets(text) for text in texts]
    ids, spans = [list(i) for i, _ in coded], [list(s) for _, s in coded]
    room = longest - len(start) - len(end) * len(texts)
    if room < len(texts):
        raise UserError(f"a system that takes {longest} tokens has no room for {len(texts)} texts.")
    cut = sum(map(len, ids)) > room
    while (excess := sum(map(len, ids)) - room) > 0:
        longest_text = max(range(len(ids)), key=lambda i: len(ids[i]))
        others = sorted(map(len, ids))
        # Down to the next longest at once, then one by one from all that are as long.
        step = min(excess, max(1, others[-1] - (others[-2] if len(others) > 1 else 0)))
        del ids[longest_text][-step:], spans[longest_text][-step:]
    tokens, places = list(start), [(0, 0)] * len(start)
    for number, (part, span) in enumerate(zip(ids, spans, strict=True)):
        tokens += [*part, *end]
        inside = span if number == len(ids) - 1 else [(0, 0)] * len(part)
        places += [*inside, *[(0, 0)] * len(end)]
    return EncodedExample(tokens=tokens, labels=[], spans=places, cut=cut)


def collate_examples(
    encoded: Sequence[EncodedExample], pad: int, rows: Sequence[int] | None = None
) -> Batch:
    """Examples side by side, with their labels."""
    conditions = [each.condition for each in encoded]
    given = None
    if all(condition is not None for condition in conditions):
        given = Batch.collate([c for c in conditions if c is not None], pad)
    batch = Batch.collate([each.tokens for each in encoded], pad, rows=rows, condition=given)
    width = max((len(each.labels) for each in encoded), default=0)
    labels = torch.full((len(encoded), width), IGNORE_LABEL)
    for row, each in enumerate(encoded):
        labels[row, : len(each.labels)] = torch.tensor(each.labels, dtype=torch.long)
    return Batch(
        tokens=batch.tokens,
        lengths=batch.lengths,
        rows=batch.rows,
        condition=given,
        labels=labels,
    )
