"""`lmlab score`: output formats, inputs and errors."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TEXTS = ("the dog sleeps", "a cat sees the dog", "the quetzal sleeps")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def test_json_is_one_document_of_scores(lmlab, runs, file: Path) -> None:
    result = lmlab("score", runs["lstm"], file, "--json")
    scores = json.loads(result.out)
    assert [score["line"] for score in scores] == [1, 3, 5]
    assert [score["text"] for score in scores] == list(TEXTS)
    for score in scores:
        words = score["text"].split()
        assert score["kind"] == "exact"
        assert score["convention"]["end"] is True
        # One token per word and the end token.
        assert score["tokens"] == len(words) + 1 == len(score["per_token"])
        assert [token["token"] for token in score["per_token"]][-1] == "</s>"
        assert score["characters"] == len(score["text"])
        total = sum(token["log_prob"] for token in score["per_token"])
        assert math.isclose(score["total"], total, rel_tol=1e-9)
    assert [score["unknown"] for score in scores] == [0, 0, 1]


def test_file_stdin_and_arguments_score_alike(lmlab, runs, file, monkeypatch) -> None:
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    from_file = lmlab("score", runs["lstm"], file, "--json").out
    texts = [part for text in TEXTS for part in ("--text", text)]
    assert lmlab("score", runs["lstm"], *texts, "--json").out == from_file
    assert lmlab("score", runs["lstm"], "--text", *TEXTS, "--json").out == from_file
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert lmlab("score", runs["lstm"], "-", "--json").out == from_file


def test_plain_lines_and_their_summary(lmlab, runs, file: Path) -> None:
    *lines, summary = lmlab("score", runs["lstm"], file).out.splitlines()
    scores = json.loads(lmlab("score", runs["lstm"], file, "--json").out)
    for line, score in zip(lines, scores, strict=True):
        total, tokens, mean, text = line.split("\t")
        assert total == f"{score['total']:.4f} nats"
        assert tokens == f"{score['tokens']} tokens"
        assert mean == f"{-score['total'] / score['tokens']:.4f} nats/token"
        assert text == score["text"]
    nats = -sum(score["total"] for score in scores)
    per_token = nats / sum(score["tokens"] for score in scores)
    per_character = nats / math.log(2) / sum(map(len, TEXTS))
    assert f"perplexity {math.exp(per_token):.4f}" in summary
    assert f"{per_character:.4f} bits/character" in summary
    assert "kind exact" in summary
    assert "end predicted" in summary


def test_per_token_and_per_word_lines_add_up_to_the_total(lmlab, runs) -> None:
    for option in ("--per-token", "--per-word"):
        lines = lmlab("score", runs["lstm"], "--text", TEXTS[1], option).out.splitlines()
        total = float(lines[0].split()[0])
        parts = [line.split("\t")[1:] for line in lines[1:-1]]
        assert [part[2] for part in parts] == [*TEXTS[1].split(), "</s>"]
        # Each of six figures is rounded to four digits.
        assert abs(sum(float(part[0]) for part in parts) - total) < 6 * 0.5e-4 + 0.5e-4


def test_per_word_in_json(lmlab, runs) -> None:
    command = ("score", runs["lstm"], "--text", TEXTS[0], "--json", "--per-word")
    [score] = json.loads(lmlab(*command).out)
    assert [word["word"] for word in score["per_word"]] == [*TEXTS[0].split(), "</s>"]


def test_csv_has_each_word_with_character_offsets(lmlab, runs, file: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(lmlab("score", runs["lstm"], file, "--csv").out)))
    assert list(rows[0]) == (
        "model,kind,line,position,word,start,end,surprisal_bits,surprisal_nats,unknown,tokens,shared"
    ).split(",")
    assert {(row["model"], row["kind"]) for row in rows} == {("lstm", "exact")}
    assert [row["word"] for row in rows if row["line"] == "1"] == [*TEXTS[0].split(), "</s>"]
    # The texts are in lines 1, 3 and 5 of the file.
    for row in rows:
        text = TEXTS[(int(row["line"]) - 1) // 2]
        if row["word"] != "</s>":
            assert text[int(row["start"]) : int(row["end"])] == row["word"]
        bits = float(row["surprisal_nats"]) / math.log(2)
        assert abs(float(row["surprisal_bits"]) - bits) < 2e-6
    assert [row["word"] for row in rows if row["unknown"] == "1"] == ["quetzal"]


def test_csv_names_the_run_by_its_folder(lmlab, runs, monkeypatch) -> None:
    monkeypatch.chdir(runs["lstm-1"])
    for name, model in ((".", "lstm-1"), ("../lstm", "lstm")):
        rows = csv.DictReader(io.StringIO(lmlab("score", name, "--text", TEXTS[0], "--csv").out))
        assert {row["model"] for row in rows} == {model}


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals there")
def test_progress_bar_does_not_change_the_output(lmlab, runs, file: Path) -> None:
    import pty

    expected = lmlab("score", runs["lstm"], file, "--csv").out
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "lmlab", "score", str(runs["lstm"]), str(file), "--csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
        os.close(terminal)
        assert process.stdout is not None
        written = process.stdout.read()
        shown = os.read(controller, 100_000).decode()
    os.close(controller)
    assert written == expected
    assert "scoring texts.txt" in shown


def test_perplexity_follows_from_the_total(lmlab, runs) -> None:
    summary = lmlab("score", runs["ngram"], "--text", TEXTS[0]).out.splitlines()[-1]
    [score] = json.loads(lmlab("score", runs["ngram"], "--text", TEXTS[0], "--json").out)
    expected = math.exp(-score["total"] / 4)  # three words and the end token
    match = re.search(r"perplexity ([\d.]+)", summary)
    assert match is not None
    assert abs(float(match[1]) - expected) < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give exactly one of"),
        (("{file}", "--text", "a"), "give exactly one of"),
        (("no-such-file",), "no file no-such-file; check the path, or give a text by --text."),
        (("{folder}",), "is a folder"),
        (("{file}", "--csv", "--json"), "--csv does not apply to --json"),
        (("{file}", "--window", "0"), "window"),
        (("{file}", "--errors", "ignore"), "'strict' or 'replace'"),
    ],
)
def test_invalid_arguments_are_refused(lmlab, runs, file: Path, arguments, message) -> None:
    given = [argument.format(file=file, folder=file.parent) for argument in arguments]
    result = lmlab("score", runs["lstm"], *given)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_empty_input_is_refused(lmlab, runs, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    result = lmlab("score", runs["lstm"], tmp_path / "empty.txt")
    assert (result.code, result.out) == (2, "")
    assert "empty.txt holds no text, only 2 empty lines" in result.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    result = lmlab("score", runs["lstm"], "-")
    assert (result.code, result.err) == (
        2,
        "lmlab: standard input holds no text, only 1 empty line; give at least one word.\n",
    )


def test_non_utf8_text_is_refused_or_replaced(lmlab, runs, tmp_path: Path, monkeypatch) -> None:
    latin = "the dog\ncaf\xe9\n".encode("latin-1")
    (tmp_path / "latin.txt").write_bytes(latin)
    result = lmlab("score", runs["lstm"], tmp_path / "latin.txt")
    assert result.code == 2
    assert "latin.txt, line 2: byte 0xe9 at position 4 is not UTF-8" in result.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(latin)))
    result = lmlab("score", runs["lstm"], "-")
    assert result.code == 2
    assert "standard input, line 2: byte 0xe9 at position 4 is not UTF-8" in result.err
    replaced = lmlab("score", runs["lstm"], tmp_path / "latin.txt", "--errors", "replace", "--json")
    assert [score["text"] for score in json.loads(replaced.out)] == ["the dog", "caf\ufffd"]


def test_byte_order_mark_and_crlf_lines(lmlab, runs, tmp_path: Path, monkeypatch) -> None:
    windows = b"\xef\xbb\xbfthe dog\r\na cat\r\n"
    (tmp_path / "windows.txt").write_bytes(windows)
    from_file = lmlab("score", runs["lstm"], tmp_path / "windows.txt", "--json").out
    assert [score["text"] for score in json.loads(from_file)] == ["the dog", "a cat"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(windows)))
    assert lmlab("score", runs["lstm"], "-", "--json").out == from_file


@pytest.mark.parametrize("damage", ["cut", "garbage", "missing", "config", "tokenizer"])
def test_broken_run_is_one_sentence(lmlab, runs, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["lstm"], run)
    weights = run / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "garbage":
        weights.write_bytes(b"\x80\x04K\x01.")
    elif damage == "missing":
        weights.unlink()
    elif damage == "config":
        (run / "config.json").write_text("{")
    else:
        (run / "tokenizer.json").write_text("[]")
    result = lmlab("score", run, "--text", "a")
    assert (result.code, result.out) == (2, "")
    assert str(run) in result.err
    assert result.err.count("\n") == 1


def test_folder_without_config_is_not_a_run(lmlab, tmp_path: Path) -> None:
    result = lmlab("score", tmp_path, "--text", "a")
    assert (result.code, result.err) == (
        2,
        f"lmlab: {tmp_path} is not a run: it has no config.json.\n",
    )


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_several_runs_make_one_table(lmlab, runs, file: Path) -> None:
    several = csv_rows(lmlab("score", runs["ngram"], runs["lstm"], file, "--csv").out)
    for name in ("ngram", "lstm"):
        alone = csv_rows(lmlab("score", runs[name], file, "--csv").out)
        assert [row for row in several if row["model"] == name] == alone
    wide = csv_rows(lmlab("score", runs["ngram"], runs["lstm"], file, "--wide", "--no-end").out)
    assert list(wide[0]) == "line,position,word,start,end,ngram,lstm,flags".split(",")
    assert [row["word"] for row in wide] == " ".join(TEXTS).split()
    for name in ("ngram", "lstm"):
        rows = [row for row in several if row["model"] == name and row["word"] != "</s>"]
        assert [row["surprisal_bits"] for row in rows] == [row[name] for row in wide]


def test_several_runs_in_other_forms(lmlab, runs, file: Path) -> None:
    result = lmlab("score", runs["ngram"], runs["lstm"], file, "--per-word")
    lines = [line for line in result.out.splitlines() if not line.startswith("\t")]
    assert [line.split()[0] for line in lines] == ["ngram", "lstm"] * 3 + ["ngram:", "lstm:"]
    assert [line.count("warning: ") for line in result.err.splitlines()] == [0, 1, 1]
    records = json.loads(lmlab("score", runs["ngram"], runs["lstm"], file, "--json").out)
    assert [(r["model"], r["line"]) for r in records[:3]] == [
        ("ngram", 1),
        ("lstm", 1),
        ("ngram", 3),
    ]


def test_words_of_a_file_a_column_and_a_pattern(lmlab, runs, file: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(
        "the dog sle eps\n\na cat sees the dog\n\nthe q u etzal sleeps\n"
    )
    (tmp_path / "columns.txt").write_text("the dog sleeps\tthe dog sle eps\n")
    words = {}
    for name, path in (("words", file), ("columns", tmp_path / "columns.txt")):
        by = "column" if name == "columns" else f"file:{tmp_path / 'words.txt'}"
        result = lmlab("score", runs["lstm"], path, "--csv", "--words-by", by)
        words[name] = [r["word"] for r in csv_rows(result.out) if r["line"] == "1"]
        assert "words share a token with another word" in result.err
    assert words["words"] == words["columns"] == ["the", "dog", "sle", "eps", "</s>"]
    result = lmlab(
        "score", runs["lstm"], "--text", "dog: cat", "--per-word", "--words-by", r"regex:\w+"
    )
    parts = [line.split()[-1] for line in result.out.splitlines() if line.startswith("\t")]
    assert parts == ["dog", ":", "cat", "</s>"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{file}", "{lstm}"), "models come before the file or the texts"),
        (("{folder}/lost", "{file}"), "there is no run at {folder}/lost"),
        (("{lstm}", "{lstm}", "{file}"), "is given twice"),
        (("{lstm}", "--given", "the", "--text", "a"), "scored by one run; leave out the others"),
        (("{file}", "--words-by", "{file}"), "write file:{file}."),
        (("{file}", "--words-by", "regex:["), "'[' is not a regular expression"),
        (
            ("{file}", "--words-by", "column"),
            "texts.txt, line 1: expected a text, a tab and its words",
        ),
        (("{file}", "--words-by", "file:{folder}/empty"), "empty is empty; give the words"),
        (
            ("{file}", "--csv", "--words-by", "file:{folder}/other"),
            "other, line 3: the words do not",
        ),
        (("{lstm}", "--method", "pll", "--text", "a"), "ngram: "),
    ],
)
def test_wrong_tables_are_refused(lmlab, runs, file: Path, arguments, message) -> None:
    (file.parent / "empty").touch()
    (file.parent / "other").write_text("the dog sleeps\n\na cat sees a dog\n")
    names = {"file": file, "folder": file.parent, "lstm": runs["lstm"]}
    given = [argument.format(**names) for argument in arguments]
    result = lmlab("score", runs["ngram"], *given)
    assert result.code == 2
    assert message.format(**names) in result.err
    assert result.err.count("\n") == 1
