"""`lmlab pairs`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PAIRS = (
    ("the dog sleeps", "sleeps dog the", "order"),
    ("a cat sees the dog", "a the cat dog sees", "order"),
    ("the dog sleeps", "the dog sleeps", "same"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "linguistics_term": term}
        for good, bad, term in PAIRS
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_accuracy_counts_the_pairs_that_the_model_gets_right(lmlab, runs, file: Path) -> None:
    told = json.loads(lmlab("pairs", runs["ngram"], file, "--json").out)
    texts = [text for good, bad, _ in PAIRS for text in (good, bad)]
    scores = json.loads(lmlab("score", runs["ngram"], "--text", *texts, "--json").out)
    totals = [score["total"] for score in scores]
    right = sum(good > bad for good, bad in zip(totals[::2], totals[1::2], strict=True))
    assert (told["overall"]["pairs"], told["overall"]["right"]) == (3, right)
    assert told["overall"]["accuracy"] == right / 3
    assert {each["name"]: each["ties"] for each in told["phenomena"]} == {"order": 0, "same": 1}


def test_a_table_with_a_line_for_all_each_file_and_each_phenomenon(lmlab, runs, file) -> None:
    lines = lmlab("pairs", runs["ngram"], file).out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["all", "file", "phenomenon", "phenomenon"]
    assert "kind exact" in lines[-1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no pair"),
        ("nonsense", "line 1: this is not JSON"),
        ('{"sentence_good": "a"}', "expected a sentence under 'sentence_bad'"),
    ],
)
def test_what_it_refuses(lmlab, runs, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    result = lmlab("pairs", runs["ngram"], path)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_a_file_that_is_not_there(lmlab, runs, tmp_path: Path) -> None:
    result = lmlab("pairs", runs["ngram"], tmp_path / "none.jsonl")
    assert result.code == 2
    assert "there is no file" in result.err
