"""Generation: write a text given another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.metrics import accuracy, rouge_l, rouge_n
from lmlab.tasks.task import Encoded, Task, ends_of


class Generate(Task):
    """p(target | source): by a system that takes a source, or after it in one sequence.

    A system that writes left to right and knows no sources reads `<s> source </s>` and goes on.
    """

    name = "generate"
    fields: ClassVar[Mapping[str, str]] = {
        "source": "what is given",
        "target": "what is to be written",
    }

    def __init__(self, labels: Sequence[str] = (), *, conditional: bool = False) -> None:
        super().__init__(labels)
        self.conditional = conditional
        """Whether the system takes the source as its condition."""

    @classmethod
    def labels_of(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return []

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, longest: int
    ) -> Encoded:
        """Labels hold one number: how many tokens at the beginning are given."""
        start, end = ends_of(vocabulary)
        source = tokenizer.encode(str(row["source"]))
        target = [*tokenizer.encode(str(row["target"])), *end] if "target" in row else []
        room = longest - len(start) - len(end)
        if self.conditional:
            cut = max(len(source), len(target)) > room
            tokens = [*start, *target][:longest]
            given = [*start, *source[:room], *end]
            return Encoded(tokens=tokens, labels=[1], spans=[], condition=given, cut=cut)
        kept = max(1, room - len(target))
        before = [*start, *source[:kept], *end]
        tokens = [*before, *target]
        cut = len(source) > kept or len(tokens) > longest
        return Encoded(tokens=tokens[:longest], labels=[len(before)], spans=[], cut=cut)

    @classmethod
    def expected(cls, row: Mapping[str, Any]) -> str:
        return str(row["target"])

    @classmethod
    def measure(cls, expected: Sequence[Any], found: Sequence[Any]) -> dict[str, float]:
        pairs = list(zip(expected, found, strict=True))
        count = max(len(pairs), 1)
        return {
            "exact_match": accuracy([a.split() for a in expected], [b.split() for b in found]),
            "rouge1": sum(rouge_n(a, b) for a, b in pairs) / count,
            "rouge2": sum(rouge_n(a, b, 2) for a, b in pairs) / count,
            "rougeL": sum(rouge_l(a, b) for a, b in pairs) / count,
        }
