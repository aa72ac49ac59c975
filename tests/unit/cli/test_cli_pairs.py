"""`lmlab pairs`."""

from __future__ import annotations

import csv
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
    (tmp_path / "nine.jsonl").write_text("")
    result = lmlab("pairs", runs["ngram"], tmp_path / "none.jsonl")
    assert result.code == 2
    assert "there is no file" in result.err
    assert f"did you mean {tmp_path / 'nine.jsonl'}?" in result.err


def test_a_tie_counts_one_half_in_a_column_of_its_own(lmlab, runs, file: Path) -> None:
    told = json.loads(lmlab("pairs", runs["ngram"], file, "--json").out)
    same = next(each for each in told["phenomena"] if each["name"] == "same")
    assert (same["accuracy"], same["accuracy_ties_half"]) == (0.0, 0.5)
    right = told["overall"]["right"]
    assert told["overall"]["accuracy_ties_half"] == pytest.approx((right + 0.5) / 3)


def test_several_models_in_one_table(lmlab, runs, file: Path) -> None:
    models = [runs["ngram"], runs["lstm"], runs["lstm-1"]]
    alone = [json.loads(lmlab("pairs", each, file, "--json").out) for each in models]
    told = json.loads(lmlab("pairs", *models, file, "--json").out)
    assert [each.pop("model") for each in told["models"]] == ["ngram", "lstm", "lstm-1"]
    assert told["models"] == alone
    for each in told["differences"]:
        halves = {
            name: one["overall"]["accuracy_ties_half"]
            for name, one in zip(("ngram", "lstm", "lstm-1"), alone, strict=True)
        }
        value = each["interval"]["value"]
        assert value == pytest.approx(halves[each["first"]] - halves[each["second"]])
        assert each["interval"]["low"] <= value <= each["interval"]["high"]
    assert len(told["differences"]) == 3
    rows = list(csv.DictReader(lmlab("pairs", *models, file, "--csv").out.splitlines()))
    assert len(rows) == 3 * 4
    assert float(rows[0]["accuracy"]) == alone[0]["overall"]["accuracy"]
    table = lmlab("pairs", *models, file).out.splitlines()
    assert table[0].split()[:3] == ["model", "by", "name"]
    assert [line.split()[0] for line in table[1:13:4]] == ["ngram", "lstm", "lstm-1"]


def test_models_come_first_and_everything_else_is_data(lmlab, runs, file: Path) -> None:
    said = lmlab("pairs", file)
    assert said.code == 2 and "no model given" in said.err
    said = lmlab("pairs", runs["ngram"], file, runs["lstm"])
    assert said.code == 2 and "models come before data" in said.err
    said = lmlab("pairs", runs["ngram"])
    assert said.code == 2 and "no file of minimal pairs given" in said.err
    folder = lmlab("pairs", runs["ngram"], file.parent, "--json")
    assert json.loads(folder.out)["overall"]["pairs"] == 3
