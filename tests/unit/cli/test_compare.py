"""`lmlab compare`: table, JSON, report files and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lmlab.cli.main import main


def test_json_rows_and_differences(lmlab, runs) -> None:
    result = lmlab("compare", *runs.values(), "--json")
    output = json.loads(result.out)
    rows = {row["name"]: row for row in output["rows"]}
    assert (output["corpus"], output["split"]) == ("grammar", "test")
    # The two seeds of the LSTM are one model.
    assert sorted(len(row["runs"]) for row in rows.values()) == [1, 2]
    for row in rows.values():
        assert row["kind"] == "exact"
        assert math.isclose(row["perplexity"], math.exp(row["nats_per_token"]))
        assert math.isclose(row["regret"], row["nats_per_token"] - row["floor"])
    [difference] = output["differences"]
    assert difference["low"] <= difference["nats"] <= difference["high"]


def test_nats_per_token_equal_those_of_score(lmlab, runs, tmp_path: Path) -> None:
    from lmlab.data.corpus import open_corpus

    texts = tmp_path / "test.txt"
    texts.write_text("\n".join(open_corpus("grammar").split("test").texts()), encoding="utf-8")
    [row] = json.loads(lmlab("compare", runs["ngram"], "--json").out)["rows"]
    scores = json.loads(lmlab("score", runs["ngram"], texts, "--json").out)
    nats = -sum(score["total"] for score in scores) / sum(score["tokens"] for score in scores)
    assert math.isclose(row["nats_per_token"], nats, rel_tol=1e-6)


def test_table_on_the_terminal(lmlab, runs) -> None:
    output = lmlab("compare", *runs.values()).out
    for word in (
        "ngram",
        "lstm",
        "exact",
        "perplexity",
        "bits/char",
        "bits/byte",
        "regret",
        "95 % interval",
    ):
        assert word in output


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("report.html", ("<!doctype html>", "<svg", "Surprisal, token by token", "lmlab train")),
        ("table.md", ("| model |", "---:")),
        ("table.tex", (r"\begin{tabular}", r"\midrule")),
        ("table.json", ('"rows"', '"differences"')),
    ],
)
def test_report_format_follows_file_extension(lmlab, runs, tmp_path: Path, name, inside) -> None:
    out = tmp_path / "new" / name
    result = lmlab("compare", runs["ngram"], runs["lstm"], "--out", out, "--json")
    assert result.code == 0
    json.loads(result.out)  # standard output stays one JSON document
    written = out.read_text(encoding="utf-8")
    for part in inside:
        assert part in written


def test_data_and_split_options(lmlab, runs, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("the dog sleeps\n")
    (tmp_path / "valid.txt").write_text("a cat sees the dog\nthe dog sleeps\n")
    command = ("compare", runs["ngram"], "--data", tmp_path, "--split", "validation", "--json")
    output = json.loads(lmlab(*command).out)
    assert (output["split"], output["rows"][0]["sequences"]) == ("validation", 2)
    # Texts of five and three words, each with an end token.
    assert output["rows"][0]["tokens"] == 6 + 4
    assert output["floor"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "report.pdf"), "must end in .html, .md, .tex, .json"),
        (("--split", "tests"), "there is no split called 'tests'"),
        (("--data", "gramar"), "did you mean 'grammar'"),
        (("--errors", "ignore", "--data", "grammar"), "'strict' or 'replace'"),
    ],
)
def test_invalid_arguments_are_refused(lmlab, runs, arguments, message) -> None:
    result = lmlab("compare", runs["ngram"], *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_duplicate_run_is_refused(lmlab, runs) -> None:
    result = lmlab("compare", runs["ngram"], runs["ngram"])
    assert result.code == 2
    assert "given twice" in result.err


def test_runs_of_different_corpora_need_data_option(lmlab, runs, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert main(["train", "ngram", "--data", "markov", "--size", "tiny", "--out", str(other)]) == 0
    result = lmlab("compare", runs["ngram"], other)
    assert result.code == 2
    assert "different corpora (grammar, markov)" in result.err
    assert lmlab("compare", runs["ngram"], other, "--data", "markov").code == 0


def test_changed_corpus_is_detected(lmlab, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b\nb a\n" * 30)
    run = tmp_path / "run"
    assert main(["train", "ngram", "--data", str(text), "--size", "tiny", "--out", str(run)]) == 0
    text.write_text("b b\na a\n" * 30)
    result = lmlab("compare", run)
    assert result.code == 2
    assert "has changed since" in result.err


def test_imported_model_is_compared_with_trained_one(lmlab, runs, tmp_path: Path) -> None:
    arpa, other = tmp_path / "model.arpa", tmp_path / "other"
    assert main(["export-arpa", str(runs["ngram"]), str(arpa)]) == 0
    assert main(["import-arpa", str(arpa), "--out", str(other)]) == 0
    alone = lmlab("compare", other)
    assert alone.code == 2
    assert "not trained here" in alone.err
    out = tmp_path / "report.html"
    output = json.loads(lmlab("compare", runs["ngram"], other, "--out", out, "--json").out)
    ours, theirs = (row["nats_per_token"] for row in output["rows"])
    # An ARPA file holds seven digits of a logarithm.
    assert math.isclose(ours, theirs, abs_tol=1e-5)
    assert out.read_text(encoding="utf-8").count("lmlab train") == 1


def test_narrow_terminal_truncates_no_column(lmlab, runs, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("lmlab.cli.output.MAX_COLUMNS", 30)
    output = lmlab("compare", runs["ngram"], runs["lstm"]).out
    assert "lstm" in output
    assert "…" not in output.replace(" … ", " ")  # except in intervals


def test_positional_corpus_equals_data_option(lmlab, runs, tmp_path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the dog sleeps\na cat sees the dog\n" * 5, encoding="utf-8")
    models = (runs["ngram"], runs["lstm"])
    split = ("--split", "train", "--json")
    named = lmlab("compare", *models, "--data", file, *split)
    assert named.code == 0
    assert lmlab("compare", *models, file, *split).out == named.out
    result = lmlab("compare", *models, file, "--data", file)
    assert result.code == 2 and "both name data" in result.err
    result = lmlab("compare", *models, "gramar")
    assert result.code == 2 and "did you mean" in result.err and "grammar" in result.err
    result = lmlab("compare", *models, file, "grammar")
    assert result.code == 2 and "takes one corpus, got 2" in result.err


def test_csv_writes_the_table_and_the_differences(lmlab, runs, tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.csv"
    result = lmlab("compare", *runs.values(), "--csv", file)
    assert "results-differences.csv" in result.err
    assert file.read_text().startswith("corpus,split,model,system,kind,")
    tests = (file.parent / "results-differences.csv").read_text().splitlines()
    assert len(tests) == 2 and tests[1].endswith(",holm,1")


def test_a_folder_is_no_csv_file(lmlab, runs, tmp_path: Path) -> None:
    result = lmlab("compare", runs["ngram"], "--csv", tmp_path)
    assert result.code == 2 and "is a folder" in result.err
