"""What is in a corpus: sizes, unknown words, duplicates, lengths, and its entropy where known."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.corpus_encoding import encoded_chunks
from lmlab.data.duplicates import DuplicateCounter
from lmlab.data.lines import ReadingReport
from lmlab.data.tokenizers import Tokenizer, tokenizer_for

MAX_BINS = 12


@dataclass(frozen=True, kw_only=True)
class HistogramBin:
    """A bar of the length histogram."""

    low: int
    """Fewest tokens."""
    high: int
    """Most tokens."""
    examples: int


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """One split, as its layout shows it to a model."""

    examples: int
    tokens: int
    """Predicted tokens: with the end, after cutting."""
    characters: int
    """Characters they stand for."""
    unknown: int
    """Unknown tokens among them."""
    duplicates: int
    """Examples that repeat an earlier one of this split."""
    seen_in_train: int | None
    """Examples whose text occurs in train; None for train itself."""
    histogram: tuple[HistogramBin, ...]
    """Examples by number of predicted tokens."""
    report: ReadingReport
    """What the reader met."""

    @property
    def unknown_rate(self) -> float:
        """Share of the predicted tokens that is unknown."""
        return self.unknown / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class CorpusSummary:
    """A corpus in numbers."""

    name: str
    description: str
    layout: Layout
    tokenizer: str
    vocabulary: int
    """Entries of the vocabulary, symbols included."""
    splits: dict[str, SplitSummary]
    duplicates_exact: bool
    """False if there are so many different texts that duplicates are estimated from a sample."""
    entropy: float | None
    """Exact entropy in nats per text, where the truth is known."""
    entropy_per_token: float | None
    """The same per predicted token, where the truth knows how long its texts are."""

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        values = asdict(self)
        for name, split in self.splits.items():
            values["splits"][name]["unknown_rate"] = split.unknown_rate
            values["splits"][name]["report"]["summary"] = split.report.summary()
        return values


def summarise_corpus(corpus: Corpus, tokenizer_kind: str | None = None) -> CorpusSummary:
    """Read a corpus through and describe it: three passes, in memory only the vocabulary."""
    tokenizer = tokenizer_for(corpus, tokenizer_kind)
    counters = {name: _count_duplicates(split) for name, split in corpus.splits.items()}
    truth = corpus.truth
    expected = getattr(truth, "expected_tokens", None)
    return CorpusSummary(
        name=corpus.name,
        description=corpus.description,
        layout=corpus.layout,
        tokenizer=tokenizer.kind,
        vocabulary=tokenizer.vocabulary.size,
        splits={
            name: _describe_split(
                split, tokenizer, corpus.layout, counters[name], _other(name, counters)
            )
            for name, split in corpus.splits.items()
        },
        duplicates_exact=all(counter.exact for counter in counters.values()),
        entropy=None if truth is None else truth.entropy,
        entropy_per_token=truth.entropy / expected if truth and expected else None,
    )


def _other(name: str, counters: dict[str, DuplicateCounter]) -> DuplicateCounter | None:
    return None if name == "train" else counters["train"]


def _count_duplicates(split: Split) -> DuplicateCounter:
    counter = DuplicateCounter()
    for example in split:
        counter.add(example)
    return counter


def _describe_split(
    split: Split,
    tokenizer: Tokenizer,
    layout: Layout,
    own: DuplicateCounter,
    train: DuplicateCounter | None,
) -> SplitSummary:
    context = 0 if layout.kind == "contiguous" else 1
    lengths: Counter[int] = Counter()
    characters = unknown = last = 0
    for chunk in encoded_chunks(split, tokenizer, tokenizer, layout, progress=False):
        offsets = chunk["offsets"] if not lengths else np.concatenate([[last], chunk["offsets"]])
        lengths.update((np.diff(offsets) - context).tolist())
        last = int(offsets[-1])
        characters += int(chunk["characters"].sum(dtype=np.int64))
        unknown += int(chunk["unknown"].sum(dtype=np.int64))
    return SplitSummary(
        examples=lengths.total(),
        tokens=sum(length * count for length, count in lengths.items()),
        characters=characters,
        unknown=unknown,
        duplicates=own.duplicates,
        seen_in_train=None if train is None else own.seen_in(train),
        histogram=length_histogram(lengths),
        report=split.report,
    )


def length_histogram(lengths: Counter[int]) -> tuple[HistogramBin, ...]:
    """Bars of equal, round width that hold 99 in 100; the last one takes the tail."""
    ordered = sorted(lengths)
    wanted, seen, most = 0.99 * lengths.total(), 0, 0
    for most in ordered:
        seen += lengths[most]
        if seen >= wanted:
            break
    width = _round_up((most + 1) / MAX_BINS)
    last = most // width
    counts: Counter[int] = Counter()
    for length, count in lengths.items():
        counts[min(length // width, last)] += count
    return tuple(
        HistogramBin(
            low=place * width,
            high=ordered[-1] if place == last else (place + 1) * width - 1,
            examples=counts[place],
        )
        for place in range(ordered[0] // width, last + 1)
    )


def _round_up(width: float) -> int:
    """The least of 1, 2, 5, 10, 20, 50, … that is not smaller."""
    scale = 1
    while 10 * scale < width:
        scale *= 10
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= width)
