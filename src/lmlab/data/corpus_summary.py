"""Corpus statistics: sizes, unknown rate, duplicates, length histogram, entropy where known."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.corpus_encoding import encoded_chunks
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example
from lmlab.data.tokenizers import Tokenizer, tokenizer_for

HASH_SPACE = 2**64


class DuplicateCounter:
    """Counts examples that repeat an earlier one; exact up to `capacity` distinct texts.

    Beyond that it keeps a uniform sample of the distinct texts, those whose hash is below a falling
    threshold (Gibbons 2001, "Distinct sampling for highly-accurate answers to distinct values
    queries"), and scales the counts by the sampling rate.
    """

    def __init__(self, capacity: int = 2**20) -> None:
        self.capacity = capacity
        self._threshold = HASH_SPACE
        self._counts: dict[int, int] = {}

    @property
    def exact(self) -> bool:
        """Whether every text was kept, so that the counts are exact."""
        return self._threshold == HASH_SPACE

    @property
    def duplicates(self) -> int:
        """Examples that repeat an earlier one of the same split."""
        repeats = sum(self._counts.values()) - len(self._counts)
        return round(repeats * HASH_SPACE / self._threshold)

    def add(self, example: Example) -> None:
        """Count one example; a pair is a duplicate only if both sides are."""
        key = _hash(example)
        if key >= self._threshold:
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        while len(self._counts) > self.capacity:
            self._threshold //= 2
            self._counts = {k: n for k, n in self._counts.items() if k < self._threshold}

    def seen_in(self, other: DuplicateCounter) -> int:
        """Examples of this split whose text occurs in the other split."""
        threshold = min(self._threshold, other._threshold)
        repeated = sum(
            count for key, count in self._counts.items() if key < threshold and key in other._counts
        )
        return round(repeated * HASH_SPACE / threshold)


def _hash(example: Example) -> int:
    # Length prefix, so that no two different pairs hash the same bytes.
    condition = example.condition or ""
    data = f"{len(condition)}:{condition}{example.text}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


MAX_BINS = 12


@dataclass(frozen=True, kw_only=True)
class HistogramBin:
    """A bin of the length histogram."""

    low: int
    """Minimum number of tokens."""
    high: int
    """Maximum number of tokens."""
    examples: int


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """Statistics of one split, as its layout presents it to a model."""

    examples: int
    tokens: int
    """Predicted tokens: including end tokens, after truncation."""
    characters: int
    """Characters of the predicted tokens."""
    unknown: int
    """Unknown tokens among the predicted ones."""
    duplicates: int
    """Examples that repeat an earlier one of this split."""
    seen_in_train: int | None
    """Examples whose text occurs in train; None for train itself."""
    histogram: tuple[HistogramBin, ...]
    """Histogram of examples by number of predicted tokens."""
    report: ReadingReport
    """Counts of the reader."""

    @property
    def unknown_rate(self) -> float:
        """Fraction of unknown tokens among the predicted ones."""
        return self.unknown / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class CorpusSummary:
    """Statistics of a corpus."""

    name: str
    description: str
    layout: Layout
    tokenizer: str
    vocabulary: int
    """Vocabulary size, special tokens included."""
    splits: dict[str, SplitSummary]
    duplicates_exact: bool
    """False if there are so many distinct texts that duplicates are estimated from a sample."""
    entropy: float | None
    """Exact entropy in nats per text, where the true distribution is known."""
    entropy_per_token: float | None
    """Entropy in nats per predicted token, where the expected length is known."""

    def as_dict(self) -> dict[str, Any]:
        """All statistics as plain values, for JSON."""
        values = asdict(self)
        for name, split in self.splits.items():
            values["splits"][name]["unknown_rate"] = split.unknown_rate
            values["splits"][name]["report"]["summary"] = split.report.summary()
        return values


def summarise_corpus(corpus: Corpus, tokenizer_kind: str | None = None) -> CorpusSummary:
    """Compute corpus statistics in three passes; only the vocabulary is held in memory."""
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
                split,
                tokenizer,
                corpus.layout,
                counters[name],
                None if name == "train" else counters["train"],
            )
            for name, split in corpus.splits.items()
        },
        duplicates_exact=all(counter.exact for counter in counters.values()),
        entropy=None if truth is None else truth.entropy,
        entropy_per_token=truth.entropy / expected if truth and expected else None,
    )


def _count_duplicates(split: Split) -> DuplicateCounter:
    counter = DuplicateCounter()
    for example in split:
        counter.add(example)
    return counter


def _describe_split(
    split: Split,
    tokenizer: Tokenizer,
    layout: Layout,
    counter: DuplicateCounter,
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
        duplicates=counter.duplicates,
        seen_in_train=None if train is None else counter.seen_in(train),
        histogram=length_histogram(lengths),
        report=split.report,
    )


def length_histogram(lengths: Counter[int]) -> tuple[HistogramBin, ...]:
    """Length histogram with bins of equal, round width for 99 %; the last bin holds the tail."""
    ordered = sorted(lengths)
    target_count, covered, percentile = 0.99 * lengths.total(), 0, 0
    for percentile in ordered:
        covered += lengths[percentile]
        if covered >= target_count:
            break
    width = _round_up((percentile + 1) / MAX_BINS)
    last = percentile // width
    counts: Counter[int] = Counter()
    for length, count in lengths.items():
        counts[min(length // width, last)] += count
    return tuple(
        HistogramBin(
            low=index * width,
            high=ordered[-1] if index == last else (index + 1) * width - 1,
            examples=counts[index],
        )
        for index in range(ordered[0] // width, last + 1)
    )


def _round_up(width: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is not less than `width`."""
    scale = 1
    while 10 * scale < width:
        scale *= 10
    return next(step * scale for step in (1, 2, 5, 10) if step * scale >= width)
