"""Generation: write a text given another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.metrics import accuracy, bleu, has_bleu, rouge_l, rouge_n
from lmlab.tasks.task import EncodedExample, Task, special_tokens_of

MAX_NEW_TOKENS = 256
"""Tokens that are written at most where a text is asked for."""


class Generation(Task):
    """p(target | source): by a system that takes a source, or after it in one sequence.

    A system that writes left to right and knows no sources reads `<s> source </s>` and goes on.
    """

    name = "generate"
    fields: ClassVar[Mapping[str, str]] = {
        "source": "what is given",
        "target": "what is to be written",
    }
    proportion_metrics: ClassVar[tuple[str, ...]] = ("exact_match",)
    means: ClassVar[tuple[str, ...]] = ("rouge1", "rouge2", "rougeL")

    def __init__(
        self,
        labels: Sequence[str] = (),
        *,
        conditional: bool = False,
        source_tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(labels)
        self.conditional = conditional
        """Whether the system takes the source as its condition."""
        self.source_tokenizer = source_tokenizer
        """That of sources, where it is not the same."""

    @classmethod
    def collect_labels(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return []

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
    ) -> EncodedExample:
        """Labels hold one number: how many tokens at the beginning are given."""
        start, end = special_tokens_of(vocabulary)
        source = (self.source_tokenizer or tokenizer).encode(str(row["source"]))
        target = [*tokenizer.encode(str(row["target"])), *end] if "target" in row else []
        room = longest - len(start) - len(end)
        if self.conditional:
            cut = max(len(source), len(target)) > room
            tokens = [*start, *target][:longest]
            if self.source_tokenizer is not None:
                start, end = special_tokens_of(self.source_tokenizer.vocabulary)
            given = [*start, *source[:room], *end]
            return EncodedExample(
                tokens=tokens, labels=[1], spans=[], condition=given, given=given, cut=cut
            )
        kept = max(1, room - len(target))
        before = [*start, *source[:kept], *end]
        tokens = [*before, *target]
        cut = len(source) > kept or len(tokens) > longest
        # Who is to write does not know how long the target is: at most half of the places are its.
        asked = max(1, room - min(MAX_NEW_TOKENS, room // 2))
        given = [*start, *source[:asked], *end]
        return EncodedExample(
            tokens=tokens[:longest], labels=[len(before)], spans=[], given=given, cut=cut
        )

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> str:
        return str(row["target"])

    @classmethod
    def measure(cls, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        pairs = list(zip(expected, found, strict=True))
        count = max(len(pairs), 1)
        more = {"bleu": bleu(expected, found)} if has_bleu(expected) else {}
        return {
            "exact_match": accuracy([a.split() for a in expected], [b.split() for b in found]),
            "rouge1": sum(rouge_n(a, b) for a, b in pairs) / count,
            "rouge2": sum(rouge_n(a, b, 2) for a, b in pairs) / count,
            "rougeL": sum(rouge_l(a, b) for a, b in pairs) / count,
        } | more
