"""`lmlab pairs`: accuracy on minimal pairs, ties, several models and errors."""

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


def test_accuracy_equals_that_computed_from_score(lmlab, runs, file: Path) -> None:
    output = json.loads(lmlab("pairs", runs["ngram"], file, "--json").out)
    texts = [text for good, bad, _ in PAIRS for text in (good, bad)]
    scores = json.loads(lmlab("score", runs["ngram"], "--text", *texts, "--json").out)
    totals = [score["total"] for score in scores]
    right = sum(good > bad for good, bad in zip(totals[::2], totals[1::2], strict=True))
    assert (output["overall"]["pairs"], output["overall"]["right"]) == (3, right)
    assert output["overall"]["accuracy"] == right / 3
    assert {phenomenon["name"]: phenomenon["ties"] for phenomenon in output["phenomena"]} == {
        "order": 0,
        "same": 1,
    }


def test_table_has_rows_overall_per_file_and_phenomenon(lmlab, runs, file) -> None:
    lines = lmlab("pairs", runs["ngram"], file).out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["all", "file", "phenomenon", "phenomenon"]
    assert "kind exact" in lines[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no pair"),
        ("nonsense", "line 1: this is not JSON"),
        ('{"sentence_good": "a"}', "expected a sentence under 'sentence_bad'"),
    ],
)
def test_invalid_pair_files_are_refused(
    lmlab, runs, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    result = lmlab("pairs", runs["ngram"], path)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_missing_file_suggests_a_similar_one(lmlab, runs, tmp_path: Path) -> None:
    (tmp_path / "nine.jsonl").write_text("")
    result = lmlab("pairs", runs["ngram"], tmp_path / "none.jsonl")
    assert result.code == 2
    assert "there is no file" in result.err
    assert f"did you mean {tmp_path / 'nine.jsonl'}?" in result.err


def test_ties_count_half_in_a_separate_column(lmlab, runs, file: Path) -> None:
    output = json.loads(lmlab("pairs", runs["ngram"], file, "--json").out)
    same = next(phenomenon for phenomenon in output["phenomena"] if phenomenon["name"] == "same")
    assert (same["accuracy"], same["accuracy_ties_half"]) == (0.0, 0.5)
    right = output["overall"]["right"]
    assert output["overall"]["accuracy_ties_half"] == pytest.approx((right + 0.5) / 3)


def test_several_models_with_paired_differences(lmlab, runs, file: Path) -> None:
    models = [runs["ngram"], runs["lstm"], runs["lstm-1"]]
    alone = [json.loads(lmlab("pairs", model, file, "--json").out) for model in models]
    output = json.loads(lmlab("pairs", *models, file, "--json").out)
    assert [record.pop("model") for record in output["models"]] == ["ngram", "lstm", "lstm-1"]
    assert output["models"] == alone
    for difference in output["differences"]:
        halves = {
            name: one["overall"]["accuracy_ties_half"]
            for name, one in zip(("ngram", "lstm", "lstm-1"), alone, strict=True)
        }
        value = difference["interval"]["value"]
        assert value == pytest.approx(halves[difference["first"]] - halves[difference["second"]])
        assert difference["interval"]["low"] <= value <= difference["interval"]["high"]
    assert len(output["differences"]) == 3
    rows = list(csv.DictReader(lmlab("pairs", *models, file, "--csv").out.splitlines()))
    assert len(rows) == 3 * 4
    assert float(rows[0]["accuracy"]) == alone[0]["overall"]["accuracy"]
    table = lmlab("pairs", *models, file).out.splitlines()
    assert table[0].split()[:3] == ["model", "by", "name"]
    assert [line.split()[0] for line in table[1:13:4]] == ["ngram", "lstm", "lstm-1"]


def test_models_must_precede_data_arguments(lmlab, runs, file: Path) -> None:
    result = lmlab("pairs", file)
    assert result.code == 2 and "no model given" in result.err
    result = lmlab("pairs", runs["ngram"], file, runs["lstm"])
    assert result.code == 2 and "models come before data" in result.err
    result = lmlab("pairs", runs["ngram"])
    assert result.code == 2 and "no file of minimal pairs given" in result.err
    folder = lmlab("pairs", runs["ngram"], file.parent, "--json")
    assert json.loads(folder.out)["overall"]["pairs"] == 3
