"""Span extraction task (SQuAD): softmax of first and last token, best span, also over windows."""

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
from lmlab.tasks.metrics import exact_match, token_f1
from lmlab.tasks.sequence_task import HeadTask
from lmlab.tasks.single_stage import SingleStageTask
from lmlab.tasks.task import NO_ANSWER_POSITION, AnswerTruncated, EncodedExample, Row, encode_texts

MAX_ANSWER_TOKENS = 30
"""The maximum length of a span in tokens."""


class SpanExtraction(HeadTask, SingleStageTask):
    """Span extraction: p(first) p(last), each a softmax of w · h over tokens (Devlin et al. 2019).

    The question precedes the text, `<s> question </s> text </s>`.
    """

    name = "span"
    fields: ClassVar[Mapping[str, str]] = {
        "text": "the text",
        "question": "the question",
        "answer": "the words of the text that answer it",
    }
    proportion_metrics: ClassVar[tuple[str, ...]] = ("exact_match",)
    mean_metrics: ClassVar[tuple[str, ...]] = ("f1",)
    needs_tokens: ClassVar[bool] = True

    @classmethod
    def check_row(cls, row: Any) -> dict[str, Any]:
        checked = super().check_row(row)
        if not checked["answer"] or str(checked["answer"]) not in str(checked["text"]):
            raise UserError(f"the answer {checked['answer']!r} is not in its text.")
        start = checked.get("start", 0)
        if type(start) is not int or not 0 <= start < len(str(checked["text"])):
            raise UserError(
                f"start must be a character of the text, counted from 0, got {start!r}."
            )
        return checked

    @classmethod
    def collect_labels(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return []

    def make_head(self, width: int) -> nn.Module:
        return nn.Linear(width, 2)

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
    ) -> EncodedExample:
        texts = [str(row["question"]), str(row["text"])]
        return self.with_labels(row, encode_texts(texts, tokenizer, vocabulary, max_length))

    def with_labels(self, row: Mapping[str, Any], example: EncodedExample) -> EncodedExample:
        if "answer" not in row:
            return example
        low, high = answer_span(row)
        positions = [p for p, (a, b) in enumerate(example.spans) if a < b and a < high and b > low]
        if not positions:
            raise AnswerTruncated
        return replace(example, labels=[positions[0], positions[-1]])

    def loss(self, scores: Tensor, labels: Tensor) -> Any:
        """scores (B, T, 2), labels (B, 2): a softmax over the positions for each end."""
        return super().loss(scores.transpose(1, 2), labels)

    def decode_answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[str]:
        answers = []
        for span_scores, example, row in zip(scores, encoded, rows, strict=True):
            first, last = best_span(span_scores[: len(example.tokens)], example)
            answers.append(str(row["text"])[example.spans[first][0] : example.spans[last][1]])
        return answers

    def answer_spans(self, row: Row) -> list[tuple[int, int]]:
        return [answer_span(row)] if "answer" in row else []

    def merge_window_scores(
        self, row: Row, windows: Sequence[EncodedExample], scores: Sequence[Tensor]
    ) -> str:
        return best_span_of_windows(str(row["text"]), windows, scores)

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> str:
        return str(row["answer"])

    @classmethod
    def compute_metrics(cls, expected: Sequence[Any], answers: Sequence[Any]) -> dict[str, float]:
        pairs = list(zip(expected, answers, strict=True))
        count = max(len(pairs), 1)
        return {
            "exact_match": exact_match(expected, answers),
            "f1": sum(token_f1(a, b) for a, b in pairs) / count,
        }


def answer_span(row: Mapping[str, Any]) -> tuple[int, int]:
    """Characters [start, end) of the answer in its text.

    Of several occurrences it is the one at "start", or the first.
    """
    low = int(row.get("start", str(row["text"]).find(str(row["answer"]))))
    return low, low + len(str(row["answer"]))


def best_span(scores: Tensor, example: EncodedExample) -> tuple[int, int]:
    """First and last position of the best span of at most `MAX_ANSWER_TOKENS` tokens of the text.

    It contains no special token, since the texts on its two sides need not be adjacent.
    """
    in_text = torch.tensor([low < high for low, high in example.spans], device=scores.device)
    first, last = scores.masked_fill(~in_text[:, None], float("-inf")).unbind(-1)
    joint = first[:, None] + last[None, :]
    allowed = torch.ones_like(joint, dtype=torch.bool).triu() & ~torch.ones_like(
        joint, dtype=torch.bool
    ).triu(MAX_ANSWER_TOKENS)
    segment = (~in_text).cumsum(0)
    allowed &= segment[:, None] == segment[None, :]
    best = int(joint.masked_fill(~allowed, float("-inf")).argmax())
    return best // len(example.tokens), best % len(example.tokens)


def best_span_of_windows(
    text: str, windows: Sequence[EncodedExample], scores: Sequence[Tensor]
) -> str:
    """The span whose score is greatest above that of its window's <s> (Alberti et al. 2019)."""
    best, answer = float("-inf"), ""
    for window, logits in zip(windows, scores, strict=True):
        first, last = best_span(logits, window)
        score = float(logits[first, 0] + logits[last, 1] - logits[NO_ANSWER_POSITION].sum())
        if score > best:
            best, answer = score, text[window.spans[first][0] : window.spans[last][1]]
    return answer
