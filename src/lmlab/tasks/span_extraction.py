"""Span extraction: the words of a text that answer a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.metrics import token_f1
from lmlab.tasks.task import AnswerTruncated, EncodedExample, Task, encode_texts

MAX_ANSWER_TOKENS = 30
"""Tokens of the longest span that is considered."""


class SpanExtraction(Task):
    """p(first) p(last) over the tokens of the text, each a softmax of w · h (Devlin et al. 2019).

    The question stands before the text, `<s> question </s> text </s>`.
    """

    name = "span"
    fields: ClassVar[Mapping[str, str]] = {
        "text": "the text",
        "question": "what is asked",
        "answer": "the words of the text that answer it",
    }
    proportion_metrics: ClassVar[tuple[str, ...]] = ("exact_match",)
    means: ClassVar[tuple[str, ...]] = ("f1",)
    needs_tokens: ClassVar[bool] = True

    @classmethod
    def check_row(cls, row: Any) -> dict[str, Any]:
        checked = super().check_row(row)
        if not checked["answer"] or str(checked["answer"]) not in str(checked["text"]):
            raise UserError(f"the answer {checked['answer']!r} does not stand in its text.")
        start = checked.get("start", 0)
        if type(start) is not int or not 0 <= start < len(str(checked["text"])):
            raise UserError(
                f"start must be a character of the text, counted from 0, got {start!r}."
            )
        return checked

    @classmethod
    def collect_labels(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return []

    def head(self, width: int) -> nn.Module:
        return nn.Linear(width, 2)

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
    ) -> EncodedExample:
        texts = [str(row["question"]), str(row["text"])]
        return self.with_labels(row, encode_texts(texts, tokenizer, vocabulary, longest))

    def with_labels(self, row: Mapping[str, Any], read: EncodedExample) -> EncodedExample:
        if "answer" not in row:
            return read
        low, high = answer_span(row)
        inside = [p for p, (a, b) in enumerate(read.spans) if a < b and a < high and b > low]
        if not inside:
            raise AnswerTruncated
        return replace(read, labels=[inside[0], inside[-1]])

    def loss(self, scores: Tensor, labels: Tensor) -> Any:
        """scores (B, T, 2), labels (B, 2): a softmax over the places for each end."""
        return super().loss(scores.transpose(1, 2), labels)

    def answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[str]:
        answers = []
        for ends, read, row in zip(scores, encoded, rows, strict=True):
            first, last = best_span(ends[: len(read.tokens)], read)
            answers.append(str(row["text"])[read.spans[first][0] : read.spans[last][1]])
        return answers

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> str:
        return str(row["answer"])

    @classmethod
    def measure(cls, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        pairs = list(zip(expected, found, strict=True))
        count = max(len(pairs), 1)
        return {
            "exact_match": sum(a.strip() == b.strip() for a, b in pairs) / count,
            "f1": sum(token_f1(a, b) for a, b in pairs) / count,
        }


def answer_span(row: Mapping[str, Any]) -> tuple[int, int]:
    """Characters [start, end) of the answer in its text.

    Where it stands several times, "start" may say which; else it is the first.
    """
    low = int(row.get("start", str(row["text"]).find(str(row["answer"]))))
    return low, low + len(str(row["answer"]))


def best_span(scores: Tensor, read: EncodedExample) -> tuple[int, int]:
    """First and last place of the best span of at most `MAX_ANSWER_TOKENS` tokens of the text.

    It runs over no symbol: what stands on its two sides need not be neighbours in the text.
    """
    inside = torch.tensor([low < high for low, high in read.spans], device=scores.device)
    first, last = scores.masked_fill(~inside[:, None], float("-inf")).unbind(-1)
    joint = first[:, None] + last[None, :]
    reach = torch.ones_like(joint, dtype=torch.bool).triu() & ~torch.ones_like(
        joint, dtype=torch.bool
    ).triu(MAX_ANSWER_TOKENS)
    stretch = (~inside).cumsum(0)
    reach &= stretch[:, None] == stretch[None, :]
    best = int(joint.masked_fill(~reach, float("-inf")).argmax())
    return best // len(read.tokens), best % len(read.tokens)
