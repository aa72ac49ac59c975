"""`--out` of score, encode, translate and fill: printed totals, and what excludes each other."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

import lmlab as package
from lmlab.scoring.score_tables import ROW_COLUMNS


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the dog sleeps\n\nmary sees a cat\n")
    return path


def test_score_writes_rows_of_several_models_and_prints_totals(lmlab, runs, text, tmp_path) -> None:
    out = tmp_path / "scores.csv"
    result = lmlab("score", runs["ngram"], runs["lstm"], text, "--out", out)
    assert result.code == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["line"], row["model"]) for row in rows] == [
        *(("1", "ngram"), ("1", "lstm"), ("3", "ngram"), ("3", "lstm"))
    ]
    expected = package.load(runs["ngram"]).score(["the dog sleeps", "mary sees a cat"])
    assert [row["log_prob"] for row in rows[::2]] == [f"{score.total:.6f}" for score in expected]
    first, second, last = result.out.splitlines()
    assert first.startswith("ngram: 2 texts, 9 tokens") and second.startswith("lstm: 2 texts")
    assert last == f"2 texts of 3 lines, 4 rows: {out}"


def test_words_are_the_rows_of_csv(lmlab, runs, text, tmp_path) -> None:
    out = tmp_path / "words.csv"
    options = (runs["ngram"], text, "--no-end")
    assert lmlab("score", *options, "--per-word", "--out", out).code == 0
    assert out.read_text() == lmlab("score", *options, "--csv").out
    assert out.read_text().startswith(",".join(ROW_COLUMNS))


def test_encode_writes_lines_and_reports_as_json(lmlab, runs, text, tmp_path) -> None:
    out = tmp_path / "vectors.jsonl"
    result = lmlab("encode", runs["lstm"], text, "--out", out, "--json")
    record = json.loads(result.out)
    assert (record["out"], record["rows"], record["finished"]) == (str(out), 2, True)
    assert [len(json.loads(line)["vector"]) for line in out.open()] == [16, 16]


def test_translate_writes_the_translations_of_the_first_column(lmlab, tmp_path) -> None:
    pairs, run, out = tmp_path / "pairs.tsv", tmp_path / "run", tmp_path / "out.jsonl"
    pairs.write_text("eins\tone\nzwei\ttwo\n" * 10)
    package.train("seq2seq", data=pairs, out=run, size="tiny", steps=2, quiet=True)
    result = lmlab("translate", run, pairs, "--out", out, "--n-best", 2, "--chunk-bytes", 40)
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in out.open()]
    assert [(row["line"], row["rank"], row["source"]) for row in rows[:4]] == [
        *((1, 1, "eins"), (1, 2, "eins"), (2, 1, "zwei"), (2, 2, "zwei"))
    ]
    best = package.load(run).translate(["eins", "zwei"])
    assert [row["text"] for row in rows[:4:2]] == [translation.text for translation in best]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--jobs", 2), "--jobs is for large files; give --out a file for the results."),
        (("--out", "o.txt"), "--out must end in one of .jsonl, .ndjson, .csv, .parquet, .npy, got"),
        (("--out", "o.npy"), "an .npy file holds vectors alone"),
        (("--out", "o.csv", "--per-token"), "--per-token does not apply to a large file (--out)"),
        (("--out", "o.csv", "--wide"), "--csv does not apply to a large file (--out)"),
        (("--out", "o.csv", "--jobs", 0), "jobs must be at least 1, got 0."),
        (("--out", "o.csv", "--chunk-bytes", 0), "chunk_bytes must be a whole number, 1 or more"),
        (("--out", "no/o.csv"), "there is no folder"),
        (("--out", "o.csv", "--on", "dask"), "--on must be ray or ray://HOST:PORT, got 'dask'."),
        (("--out", "o.csv", "--on", "ray://h:1"), "--on ray needs Ray: pip install 'lmlab[ray]'."),
    ],
)
def test_options_that_do_not_apply(
    lmlab, runs, text, tmp_path, monkeypatch, arguments, sentence
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # which lmlab sets, undone after the test
    result = lmlab("score", runs["ngram"], text, *arguments)
    assert result.code == 2 and sentence in result.err, result.err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_texts_and_wrong_inputs_of_a_large_file(lmlab, runs, tmp_path) -> None:
    out = ("--out", tmp_path / "o.jsonl")
    assert "give a FILE" in lmlab("score", runs["ngram"], "two words", *out).err
    assert "give a FILE" in lmlab("fill", runs["ngram"], "-", *out).err
    assert "cannot read" in lmlab("score", runs["ngram"], tmp_path / "none.txt", *out).err
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert "holds no text" in lmlab("score", runs["ngram"], empty, *out).err
    vectors = ("encode", runs["lstm"], empty, "--jobs", 2, "--out", tmp_path / "v.npz")
    assert "--jobs is for large files" in lmlab(*vectors).err
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]
