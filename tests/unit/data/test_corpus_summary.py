"""Corpus summaries: every number is counted by hand on a small corpus."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmlab.data import corpus_encoding
from lmlab.data.corpus import Corpus, Layout, Split, open_corpus
from lmlab.data.corpus_summary import (
    DuplicateCounter,
    HistogramBin,
    length_histogram,
    summarise_corpus,
)
from lmlab.data.readers import Example


@dataclass(frozen=True)
class CoinTruth:
    entropy: float = math.log(2)
    expected_tokens: float = 2.0

    def log_prob(self, text: str) -> float:
        return -math.log(2)


def corpus(**parts: list[str]) -> Corpus:
    splits = {
        name: Split.from_list(texts, identity=repr(texts), name=name)
        for name, texts in parts.items()
    }
    return Corpus(name="hand", splits=splits)


@pytest.mark.parametrize("chunk", [1, 4096])
def test_sizes_unknown_tokens_and_duplicates_match_hand_counts(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(corpus_encoding, "CHUNK_EXAMPLES", chunk)
    summary = summarise_corpus(corpus(train=["a b", "a b", "c", "a b"], test=["c", "x y", "x y"]))
    train, test = summary.splits["train"], summary.splits["test"]
    assert summary.vocabulary == 5 + 3
    assert (train.examples, train.tokens, train.characters) == (4, 3 * 3 + 2, 3 * 3 + 1)
    assert (train.unknown, train.duplicates, train.seen_in_train) == (0, 2, None)
    assert (test.examples, test.tokens, test.unknown) == (3, 2 + 3 + 3, 4)
    assert test.unknown_rate == 4 / 8
    assert (test.duplicates, test.seen_in_train) == (1, 1)
    assert summary.duplicates_exact
    assert (summary.entropy, summary.entropy_per_token) == (None, None)


@pytest.mark.parametrize("kind", ["sentences", "contiguous"])
def test_layouts_have_equal_predicted_token_counts(kind: str) -> None:
    hand = corpus(train=["a b", "c"])
    summary = summarise_corpus(
        Corpus(name="x", splits=hand.splits, layout=Layout(kind=kind))  # type: ignore[arg-type]
    )
    assert summary.splits["train"].tokens == 5
    assert sum(histogram_bin.examples for histogram_bin in summary.splits["train"].histogram) == 2


def test_entropy_of_known_distribution_is_reported() -> None:
    hand = corpus(train=["h", "t"])
    summary = summarise_corpus(Corpus(name="coin", splits=hand.splits, truth=CoinTruth()))
    assert summary.entropy == math.log(2)
    assert summary.entropy_per_token == math.log(2) / 2


def test_summary_serialises_to_json_with_reading_report(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone two\r\n\r\nthree\r\n")
    summary = json.loads(json.dumps(summarise_corpus(open_corpus(path), "char").as_dict()))
    train = summary["splits"]["train"]
    assert summary["tokenizer"] == "char"
    assert train["report"]["crlf_lines"] == 3
    assert "1 empty lines skipped" in train["report"]["summary"]
    assert train["unknown_rate"] == 0
    assert summary["layout"] == {"kind": "sentences", "cut": None, "end": True}


def test_length_histogram_has_equal_bins_and_a_tail() -> None:
    # 99 of 100 have length at most 20: bins of width 2, the last one up to the maximum.
    lengths = Counter(dict.fromkeys(range(1, 20), 5) | {20: 4, 500: 1})
    bins = length_histogram(lengths)
    assert bins[0] == HistogramBin(low=0, high=1, examples=5)
    assert bins[1] == HistogramBin(low=2, high=3, examples=10)
    assert bins[-1] == HistogramBin(low=20, high=500, examples=5)
    assert sum(histogram_bin.examples for histogram_bin in bins) == lengths.total() == 100


@pytest.mark.parametrize("lengths", [{1: 1}, {7: 3}, {10**7: 1}, {1: 1000, 10**7: 1}])
def test_length_histogram_covers_extreme_lengths(lengths: dict[int, int]) -> None:
    bins = length_histogram(Counter(lengths))
    assert sum(histogram_bin.examples for histogram_bin in bins) == sum(lengths.values())
    assert bins[0].low <= min(lengths)
    assert bins[-1].high >= max(lengths)
    assert len(bins) <= 13


def test_pairs_are_duplicates_only_if_both_sides_match() -> None:
    counter = DuplicateCounter()
    pairs = [("a", "b"), ("a", "b"), ("a", "c"), ("ab", ""), ("", "ab")]
    for text, condition in pairs:
        counter.add(Example(text, condition=condition))
    assert counter.duplicates == 1


def test_duplicate_counts_are_estimated_in_bounded_memory() -> None:
    train, test = DuplicateCounter(capacity=500), DuplicateCounter(capacity=500)
    for i in range(20_000):
        train.add(Example(f"text {i}"))
        train.add(Example(f"text {i}"))
        test.add(Example(f"text {i + 10_000}"))
    assert not train.exact
    assert max(len(train._counts), len(test._counts)) <= 500
    # The true numbers are 20,000 duplicates and 10,000 of the test texts in train; a sample of at
    # least 250 texts has a relative standard error of at most 1/sqrt(250) = 6.3 %, for the half
    # that is shared 1/sqrt(125) = 9 %. Four standard errors:
    assert abs(train.duplicates - 20_000) < 0.26 * 20_000
    assert abs(test.seen_in(train) - 10_000) < 0.36 * 10_000


def test_reading_reports_are_per_split(write_file: Callable[[str, str], Path]) -> None:
    write_file("c/train.txt", "a\n\nb\n")
    summary = summarise_corpus(open_corpus(write_file("c/test.txt", "a\n").parent))
    assert summary.splits["train"].report.empty_lines == 1
    assert summary.splits["test"].report.empty_lines == 0
    assert summary.splits["test"].seen_in_train == 1
