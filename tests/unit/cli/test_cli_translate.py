"""`lmlab translate` and `lmlab evaluate` on a translator trained for a moment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from lmlab.training.train import train

from .conftest import Command

NAMES = {"eins": "one", "zwei": "two", "drei": "three"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers of one to three German words, and the same in English."""
    folder = tmp_path_factory.mktemp("numbers")
    sources = [" ".join(words) for n in (1, 2, 3) for words in product(NAMES, repeat=n)]
    for split, chosen in {"train": sources, "valid": sources[::4], "test": sources[1::4]}.items():
        targets = [" ".join(NAMES[word] for word in text.split()) for text in chosen]
        (folder / f"{split}.de").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        (folder / f"{split}.en").write_text("\n".join(targets) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "numbers"
    settings = {"learning_rate": 0.03, "tokens_per_batch": 160, "width": 24, "schedule": "cosine"}
    train(
        "seq2seq-attention",
        data=f"parallel:de-en:{pairs}",
        out=out,
        size="tiny",
        settings=settings,
        steps=150,
        quiet=True,
    )
    return out


def test_lines_come_out_in_the_order_they_went_in(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "texts.de"
    file.write_text("zwei drei eins\n\neins\ndrei zwei\n", encoding="utf-8")
    found = lmlab("translate", run, file)
    assert (found.code, found.out) == (0, "two three one\n\none\nthree two\n")
    assert lmlab("translate", run, file, "--beam", 1).out == found.out


def test_the_first_of_several_is_the_only_one_of_one(lmlab: Command, run: Path):
    (one,) = json.loads(lmlab("translate", run, "--text", "zwei eins", "--json").out)
    (many,) = json.loads(
        lmlab("translate", run, "--text", "zwei eins", "--n-best", 4, "--beam", 5, "--json").out
    )
    assert one["source"] == "zwei eins" and one["written"][0] == many["written"][0]
    scores = [each["log_prob"] for each in many["written"]]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    shown = lmlab("translate", run, "--text", "zwei eins", "--n-best", 4).out.splitlines()
    assert [line.split("\t")[1] for line in shown] == [each["text"] for each in many["written"]]


def test_words_can_be_required_banned_and_begun_with(lmlab: Command, run: Path):
    def translated(*options: str) -> str:
        return lmlab("translate", run, "--text", "eins zwei", *options).out.strip()

    assert "three" in translated("--require", "three").split()
    assert "two" not in translated("--ban", "two").split()
    assert translated("--prefix", "three").startswith("three")


def test_a_pipe_is_answered_line_by_line(run: Path):
    command = [sys.executable, "-m", "lmlab", "translate", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"drei\n")
        process.stdin.flush()
        # Answered before the pipe is closed.
        assert process.stdout.readline() == b"three\n"
        process.stdin.write(b"eins")
        process.stdin.close()
        assert process.stdout.read() == b"one\n"
    assert process.returncode == 0


def test_where_it_looked_is_drawn(lmlab: Command, run: Path, tmp_path: Path):
    folder = tmp_path / "pictures"
    found = lmlab("translate", run, "--text", "drei eins", "--draw", folder)
    assert found.out == "three one\n"
    (picture,) = folder.glob("*.svg")
    assert "drei" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere.de",), "there is no file nowhere.de"),
        (("--text", "eins", "--beam", "0"), "beam width must be 1 or more"),
        (("--text", "eins", "--method", "guess"), "guess"),
        (("--text", "eins", "--method", "greedy", "--beam", "3"), "no use for"),
        (("--text", "eins", "--ban", "unheard"), "unheard"),
    ],
)
def test_bad_requests_are_told_in_a_sentence(lmlab: Command, run: Path, arguments, told: str):
    found = lmlab("translate", run, *arguments)
    assert found.code != 0 and told in found.err and "Traceback" not in found.err


def test_bytes_that_are_no_utf8_are_named_by_line(lmlab: Command, run: Path, tmp_path: Path):
    file = tmp_path / "bad.de"
    file.write_bytes(b"eins\nzw\xffei\n")
    found = lmlab("translate", run, file)
    assert found.code != 0 and "line 2: byte 0xff" in found.err
    assert lmlab("translate", run, file, "--errors", "replace").code == 0


def test_a_language_model_is_no_translator(lmlab: Command, runs: dict[str, Path]):
    found = lmlab("translate", runs["lstm"], "--text", "the dog")
    assert found.code != 0 and "source" in found.err
    judged = lmlab("evaluate", runs["lstm"])
    assert judged.code != 0 and "Traceback" not in judged.err


def test_evaluation_has_figures_signature_and_a_paired_test(
    lmlab: Command, run: Path, tmp_path: Path
):
    folder = tmp_path / "out"
    twin = shutil.copytree(run, tmp_path / "twin")
    found = lmlab("evaluate", run, twin, "--out", folder, "--json")
    assert found.code == 0, found.err
    record = json.loads(found.out)
    bleu, _, first, second = record["judged"]
    assert (bleu["metric"], first["metric"]) == ("bleu", "chrf")
    # Every word is right; no text has the four words that BLEU's longest n-grams need.
    assert first["score"] == second["score"] == pytest.approx(100.0) and bleu["score"] == 0
    assert first["p_value"] is None and second["p_value"] == 1.0
    assert "tok:none" in bleu["signature"] and first["texts"] == 10
    written = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert written["numbers.txt"] == written["twin.txt"]
    assert len(written["twin.txt"].splitlines()) == 10
    shown = lmlab("evaluate", run, "--limit", 3).out
    assert "3 texts" in shown and "chrf" in shown and "version:" in shown


def test_unequal_files_and_unknown_languages_are_told(lmlab: Command, run: Path, tmp_path: Path):
    for name, text in {"test.de": "eins\nzwei\n", "test.en": "one\n", "train.de": "eins\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "train.en").write_text("one\n", encoding="utf-8")
    uneven = lmlab("evaluate", run, "--data", f"parallel:de-en:{tmp_path}")
    assert uneven.code != 0 and "as many lines" in uneven.err
    unknown = lmlab("evaluate", run, "--data", f"parallel:de-fr:{tmp_path}")
    assert unknown.code != 0 and "train*.fr" in unknown.err
