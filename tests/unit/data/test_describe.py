"""Descriptions: every number counted by hand on a small corpus."""

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
def test_sizes_unknown_and_duplicates_by_hand(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(corpus_encoding, "CHUNK_EXAMPLES", chunk)
    made = summarise_corpus(corpus(train=["a b", "a b", "c", "a b"], test=["c", "x y", "x y"]))
    train, test = made.splits["train"], made.splits["test"]
    assert made.vocabulary == 5 + 3
    assert (train.examples, train.tokens, train.characters) == (4, 3 * 3 + 2, 3 * 3 + 1)
    assert (train.unknown, train.duplicates, train.seen_in_train) == (0, 2, None)
    assert (test.examples, test.tokens, test.unknown) == (3, 2 + 3 + 3, 4)
    assert test.unknown_rate == 4 / 8
    assert (test.duplicates, test.seen_in_train) == (1, 1)
    assert made.duplicates_exact
    assert (made.entropy, made.entropy_per_token) == (None, None)


@pytest.mark.parametrize("kind", ["sentences", "contiguous"])
def test_layouts_predict_alike(kind: str) -> None:
    hand = corpus(train=["a b", "c"])
    made = summarise_corpus(
        Corpus(name="x", splits=hand.splits, layout=Layout(kind=kind))  # type: ignore[arg-type]
    )
    assert made.splits["train"].tokens == 5
    assert sum(bar.examples for bar in made.splits["train"].histogram) == 2


def test_the_entropy_of_a_known_truth() -> None:
    hand = corpus(train=["h", "t"])
    made = summarise_corpus(Corpus(name="coin", splits=hand.splits, truth=CoinTruth()))
    assert made.entropy == math.log(2)
    assert made.entropy_per_token == math.log(2) / 2


def test_it_can_be_written_as_json_with_the_reading_report(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone two\r\n\r\nthree\r\n")
    made = json.loads(json.dumps(summarise_corpus(open_corpus(path), "char").as_dict()))
    train = made["splits"]["train"]
    assert made["tokenizer"] == "char"
    assert train["report"]["crlf_lines"] == 3
    assert "1 empty lines skipped" in train["report"]["summary"]
    assert train["unknown_rate"] == 0
    assert made["layout"] == {"kind": "sentences", "cut": None, "end": True}


def test_a_histogram_has_round_bars_and_a_tail() -> None:
    # 99 of 100 are at most 20 long: bars of 2, the last one up to the longest.
    lengths = Counter(dict.fromkeys(range(1, 20), 5) | {20: 4, 500: 1})
    bars = length_histogram(lengths)
    assert bars[0] == HistogramBin(low=0, high=1, examples=5)
    assert bars[1] == HistogramBin(low=2, high=3, examples=10)
    assert bars[-1] == HistogramBin(low=20, high=500, examples=5)
    assert sum(bar.examples for bar in bars) == lengths.total() == 100


@pytest.mark.parametrize("lengths", [{1: 1}, {7: 3}, {10**7: 1}, {1: 1000, 10**7: 1}])
def test_histograms_of_odd_lengths(lengths: dict[int, int]) -> None:
    bars = length_histogram(Counter(lengths))
    assert sum(bar.examples for bar in bars) == sum(lengths.values())
    assert bars[0].low <= min(lengths)
    assert bars[-1].high >= max(lengths)
    assert len(bars) <= 13


def test_pairs_repeat_only_if_both_sides_do() -> None:
    counter = DuplicateCounter()
    pairs = [("a", "b"), ("a", "b"), ("a", "c"), ("ab", ""), ("", "ab")]
    for text, condition in pairs:
        counter.add(Example(text, condition=condition))
    assert counter.duplicates == 1


def test_many_texts_are_estimated_in_bounded_memory() -> None:
    train, test = DuplicateCounter(capacity=500), DuplicateCounter(capacity=500)
    for i in range(20_000):
        train.add(Example(f"text {i}"))
        train.add(Example(f"text {i}"))
        test.add(Example(f"text {i + 10_000}"))
    assert not train.exact
    assert max(len(train._counts), len(test._counts)) <= 500
    # The true numbers are 20,000 repeats and 10,000 of the test texts in train; a sample of at
    # least 250 texts has a relative spread of at most 1/sqrt(250) = 6.3 %, for the half that are
    # shared 1/sqrt(125) = 9 %. Four of them:
    assert abs(train.duplicates - 20_000) < 0.26 * 20_000
    assert abs(test.seen_in(train) - 10_000) < 0.36 * 10_000


def test_reports_are_of_each_split(write: Callable[[str, str], Path]) -> None:
    write("c/train.txt", "a\n\nb\n")
    made = summarise_corpus(open_corpus(write("c/test.txt", "a\n").parent))
    assert made.splits["train"].report.empty_lines == 1
    assert made.splits["test"].report.empty_lines == 0
    assert made.splits["test"].seen_in_train == 1
