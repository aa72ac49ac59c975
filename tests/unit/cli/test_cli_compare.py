"""`lmlab compare`: tables, files of every form, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lmlab.cli.main import main


def test_json_says_what_each_row_is(lmlab, runs) -> None:
    result = lmlab("compare", *runs.values(), "--json")
    told = json.loads(result.out)
    rows = {row["name"]: row for row in told["rows"]}
    assert (told["corpus"], told["split"]) == ("grammar", "test")
    # The two seeds of the LSTM are one model.
    assert sorted(len(row["runs"]) for row in rows.values()) == [1, 2]
    for row in rows.values():
        assert row["kind"] == "exact"
        assert math.isclose(row["perplexity"], math.exp(row["nats_per_token"]))
        assert math.isclose(row["regret"], row["nats_per_token"] - row["floor"])
    [difference] = told["differences"]
    assert difference["low"] <= difference["nats"] <= difference["high"]


def test_the_figure_is_that_of_score(lmlab, runs, tmp_path: Path) -> None:
    from lmlab.data.corpus import open_corpus

    texts = tmp_path / "test.txt"
    texts.write_text("\n".join(open_corpus("grammar").split("test").texts()), encoding="utf-8")
    [row] = json.loads(lmlab("compare", runs["ngram"], "--json").out)["rows"]
    scores = json.loads(lmlab("score", runs["ngram"], texts, "--json").out)
    nats = -sum(score["total"] for score in scores) / sum(score["tokens"] for score in scores)
    assert math.isclose(row["nats_per_token"], nats, rel_tol=1e-6)


def test_a_table_on_the_screen(lmlab, runs) -> None:
    told = lmlab("compare", *runs.values()).out
    for word in ("ngram", "lstm", "exact", "perplexity", "bits/char", "regret", "95 % interval"):
        assert word in told


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("report.html", ("<!doctype html>", "<svg", "Surprisal, token by token", "lmlab train")),
        ("table.md", ("| model |", "---:")),
        ("table.tex", (r"\begin{tabular}", r"\midrule")),
        ("table.json", ('"rows"', '"differences"')),
    ],
)
def test_files_in_the_form_of_their_ending(lmlab, runs, tmp_path: Path, name, inside) -> None:
    out = tmp_path / "new" / name
    result = lmlab("compare", runs["ngram"], runs["lstm"], "--out", out, "--json")
    assert result.code == 0
    json.loads(result.out)  # standard output stays one JSON document
    written = out.read_text(encoding="utf-8")
    for part in inside:
        assert part in written


def test_another_corpus_and_split(lmlab, runs, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("the dog sleeps\n")
    (tmp_path / "valid.txt").write_text("a cat sees the dog\nthe dog sleeps\n")
    command = ("compare", runs["ngram"], "--data", tmp_path, "--split", "validation", "--json")
    told = json.loads(lmlab(*command).out)
    assert (told["split"], told["rows"][0]["sequences"]) == ("validation", 2)
    # Five words and three, each with its end.
    assert told["rows"][0]["tokens"] == 6 + 4
    assert told["floor"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "report.pdf"), "must end in .html, .md, .tex, .json"),
        (("--split", "tests"), "there is no split called 'tests'"),
        (("--data", "gramar"), "did you mean 'grammar'"),
        (("--errors", "ignore", "--data", "grammar"), "'strict' or 'replace'"),
    ],
)
def test_what_it_refuses(lmlab, runs, arguments, said) -> None:
    result = lmlab("compare", runs["ngram"], *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_the_same_run_twice(lmlab, runs) -> None:
    result = lmlab("compare", runs["ngram"], runs["ngram"])
    assert result.code == 2
    assert "given twice" in result.err


def test_runs_of_different_corpora_need_to_be_told_which(lmlab, runs, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert main(["train", "ngram", "--data", "markov", "--size", "tiny", "--out", str(other)]) == 0
    result = lmlab("compare", runs["ngram"], other)
    assert result.code == 2
    assert "different corpora (grammar, markov)" in result.err
    assert lmlab("compare", runs["ngram"], other, "--data", "markov").code == 0


def test_a_corpus_that_has_changed_is_noticed(lmlab, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b\nb a\n" * 30)
    run = tmp_path / "run"
    assert main(["train", "ngram", "--data", str(text), "--size", "tiny", "--out", str(run)]) == 0
    text.write_text("b b\na a\n" * 30)
    result = lmlab("compare", run)
    assert result.code == 2
    assert "has changed since" in result.err


def test_a_model_from_elsewhere_is_compared_with_ours(lmlab, runs, tmp_path: Path) -> None:
    arpa, other = tmp_path / "model.arpa", tmp_path / "other"
    assert main(["export-arpa", str(runs["ngram"]), str(arpa)]) == 0
    assert main(["import-arpa", str(arpa), "--out", str(other)]) == 0
    alone = lmlab("compare", other)
    assert alone.code == 2
    assert "not trained here" in alone.err
    out = tmp_path / "report.html"
    told = json.loads(lmlab("compare", runs["ngram"], other, "--out", out, "--json").out)
    ours, theirs = (row["nats_per_token"] for row in told["rows"])
    # An ARPA file holds seven digits of a logarithm.
    assert math.isclose(ours, theirs, abs_tol=1e-5)
    assert out.read_text(encoding="utf-8").count("lmlab train") == 1


def test_on_a_narrow_screen_no_column_vanishes(lmlab, runs, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("lmlab.cli.output.MAX_COLUMNS", 30)
    told = lmlab("compare", runs["ngram"], runs["lstm"]).out
    assert "lstm" in told
    assert "…" not in told.replace(" … ", " ")  # but for that of the intervals


def test_a_corpus_after_the_runs_is_what_data_names(lmlab, runs, tmp_path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the dog sleeps\na cat sees the dog\n" * 5, encoding="utf-8")
    both = (runs["ngram"], runs["lstm"])
    split = ("--split", "train", "--json")
    named = lmlab("compare", *both, "--data", file, *split)
    assert named.code == 0
    assert lmlab("compare", *both, file, *split).out == named.out
    said = lmlab("compare", *both, file, "--data", file)
    assert said.code == 2 and "both name data" in said.err
    said = lmlab("compare", *both, "gramar")
    assert said.code == 2 and "did you mean" in said.err and "grammar" in said.err
    said = lmlab("compare", *both, file, "grammar")
    assert said.code == 2 and "takes one corpus, got 2" in said.err
