"""Length-ratio filter for parallel corpora: drops pairs whose sides differ too much in length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, Split
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example, ExampleReader


@dataclass(frozen=True, kw_only=True)
class LengthRatioFilter:
    """Reader wrapper: keeps pairs whose length ratio in words is at most `max_ratio`."""

    reader: ExampleReader
    max_ratio: float

    def read(self, report: ReadingReport) -> Iterator[Example]:
        for example in self.reader.read(report):
            if within_length_ratio(example.text, example.condition or "", self.max_ratio):
                yield example
            else:
                report.uneven_pairs += 1

    def identity(self) -> str:
        return f"{self.reader.identity()}:ratio={self.max_ratio:g}"

    def files(self) -> Sequence[Path]:
        return self.reader.files()


def within_length_ratio(text: str, source: str, max_ratio: float) -> bool:
    """Whether neither side of a pair has more than `max_ratio` times the words of the other."""
    counts = [len(text.split()), len(source.split())]
    if min(counts) <= 1:
        # Text without spaces is measured in characters; otherwise all of it would be one word.
        counts = [len(text), len(source)]
    return max(counts) <= max_ratio * max(min(counts), 1)


def filter_by_length_ratio(corpus: Corpus, max_ratio: float) -> Corpus:
    """Filter the training split by length ratio; held-out splits are unchanged."""
    if corpus.layout.kind != "pairs":
        raise UserError(
            f"max_length_ratio does not apply to {corpus.name}, a corpus of single texts; remove "
            "it."
        )
    train = corpus.splits["train"]
    filtered = Split(LengthRatioFilter(reader=train.reader, max_ratio=max_ratio), name=train.name)
    return replace(corpus, splits={**corpus.splits, "train": filtered})
