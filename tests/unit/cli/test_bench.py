"""`lmlab bench`: suites of several runs in one table, JSON, report, predictions and errors."""

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
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "blimp_filtered"
    folder.mkdir(parents=True)
    rows = [{"sentence_good": g, "sentence_bad": b, "UID": uid} for g, b, uid in PAIRS]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path / "data"


def test_accuracy_is_that_of_pairs(lmlab, runs, data: Path) -> None:
    suite = json.loads(lmlab("bench", "blimp", runs["ngram"], "--data", data, "--json").out)
    file = data / "blimp_filtered" / "pairs.jsonl"
    pairs = json.loads(lmlab("pairs", runs["ngram"], file, "--json").out)
    paradigms = {g["name"]: g for g in suite["results"][0]["groups"] if g["by"] == "paradigm"}
    assert {
        paradigm["name"]: (paradigm["accuracy_ties_half"], paradigm["ties"])
        for paradigm in pairs["paradigms"]
    } == {name: (group["value"], group["ties"]) for name, group in paradigms.items()}
    assert paradigms["same"]["ties_to_first"] == 1


def test_several_runs_give_a_table_a_report_and_predictions(
    lmlab, runs, data: Path, tmp_path: Path
) -> None:
    report, folder = tmp_path / "report.html", tmp_path / "predictions"
    options = ("--data", data, "--out", report, "--predictions", folder)
    result = lmlab("bench", "babylm", runs["ngram"], runs["lstm"], *options)
    assert result.code == 0, result.err
    table = result.out.splitlines()
    assert table[1].split()[:4] == ["ngram", "blimp", "accuracy", "3"]
    assert "ngram - lstm" in result.out and "in these data: 2 of 67" in result.out
    assert "kind exact" in table[-1] and f"written: {report}" in result.err
    html = report.read_text(encoding="utf-8")
    assert "<svg" in html and "Warstadt et al. 2020" in html
    files = sorted(folder.rglob("predictions.json"))
    assert [file.relative_to(folder).parts[0] for file in files] == ["lstm", "ngram"]


@pytest.mark.parametrize(
    ("suite", "options", "message"),
    [
        ("blump", (), "there is no suite 'blump'; did you mean blimp"),
        ("blimp", ("--out", "report.pdf"), "the report file must end in .html"),
        ("syntaxgym", ("--predictions", "p"), "--predictions does not apply to syntaxgym"),
        ("wug", (), "holds no .jsonl file"),
    ],
)
def test_errors_are_one_sentence(
    lmlab, runs, data: Path, suite: str, options: tuple[str, ...], message: str
) -> None:
    result = lmlab("bench", suite, runs["ngram"], "--data", data, *options)
    assert (result.code, result.out) == (2, "") and message in result.err
    late = lmlab("bench", "blimp", runs["ngram"], data, "--data", data)
    assert late.code == 2 and "is no run; name the data by --data" in late.err


def test_masked_models_have_pseudo_likelihoods(lmlab, data: Path, tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    budget = ("--data", "grammar", "--size", "tiny", "--steps", "2")
    assert lmlab("train", "bert", "--out", bert, *budget).code == 0
    boxes = data / "entity_tracking" / "regular.jsonl"
    boxes.parent.mkdir()
    item = {"input_prefix": "the dog sees ", "options": ["mary", "a cat"], "numops": 0}
    boxes.write_text(json.dumps(item), encoding="utf-8")
    folder = tmp_path / "predictions"
    options = ("--data", data, "--predictions", folder, "--json")
    suites = json.loads(lmlab("bench", "babylm", bert, *options).out)["results"]
    assert [(suite["suite"], suite["kind"]) for suite in suites] == [
        ("blimp", "pseudo"),
        ("entity-tracking", "pseudo"),
    ]
    assert len([*folder.glob("bert/main/zero_shot/mlm/*/*/predictions.json")]) == 2


def test_a_model_that_texts_are_too_long_for_is_listed(
    lmlab, runs, data: Path, tmp_path: Path
) -> None:
    energy = tmp_path / "energy"
    budget = ("--data", "grammar", "--size", "tiny", "--steps", "2")
    assert lmlab("train", "ebm", "--out", energy, *budget).code == 0
    boxes = data / "entity_tracking" / "regular.jsonl"
    boxes.parent.mkdir()
    item = {"input_prefix": "the dog " * 40, "options": ["mary", "a cat"], "numops": 0}
    boxes.write_text(json.dumps(item), encoding="utf-8")
    result = lmlab("bench", "babylm", energy, runs["ngram"], "--data", data)
    assert result.code == 0 and "energy has no result on entity-tracking: a text" in result.out
    alone = lmlab("bench", "entity-tracking", energy, "--data", data)
    assert alone.code == 2 and "at most 64 tokens" in alone.err
