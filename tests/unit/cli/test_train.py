"""`lmlab train`: run folder, settings, resuming and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

QUICK = ("--size", "tiny", "--steps", "2", "--data", "markov")


def test_run_folder_contents(runs: dict[str, Path]) -> None:
    inside = {path.name for path in runs["lstm"].iterdir()}
    assert {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "metrics.jsonl",
        "environment.json",
        "figures",
    } <= inside
    assert "<svg" in (runs["lstm"] / "figures" / "curves.svg").read_text()
    config = json.loads((runs["lstm-1"] / "config.json").read_text())
    assert (config["seed"], config["training"]["steps"]) == (1, 6)


def test_set_changes_system_and_training_config(lmlab, tmp_path: Path) -> None:
    settings = ("--set", "width=12", "grad_clip=0.5", "--set", "learning-rate=0.001")
    result = lmlab("train", "gru", "--out", tmp_path / "run", *QUICK, *settings)
    assert (result.code, result.out) == (0, "")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["system_config"]["width"] == 12
    assert config["training"]["grad_clip"] == 0.5
    assert config["training"]["learning_rate"] == 0.001


def test_resume_continues_to_a_larger_budget(lmlab, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert lmlab("train", "window", "--out", out, *QUICK).code == 0
    again = ("--data", "markov", "--steps", "4", "--resume")
    assert lmlab("train", "window", "--out", out, *again).code == 0
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").open()]
    assert max(steps) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lstn", *QUICK), "there is no system called 'lstn'; did you mean 'lstm'"),
        (("zzzz", *QUICK), "there is no system called 'zzzz'; lmlab systems lists all names."),
        (("lstm", *QUICK, "--documents", "wiki"), "--documents does not apply to lstm"),
        (("lstm", *QUICK, "--base", "runs/x"), "there is no run at runs/x"),
        (("lstm", *QUICK, "--encoder", "runs/x"), "--encoder does not apply to lstm"),
        (("ebm", *QUICK, "--encoder", "runs/x"), "runs/x"),
        (("lstm", *QUICK, "--knowledge", "wordnet"), "--knowledge does not apply to lstm"),
        (("lstm", *QUICK, "--objective", "masked"), "those that fit: next-token"),
        (("lstm", *QUICK, "--recipe", "note"), "did you mean 'notes'"),
        (("lstm", *QUICK, "--size", "tin"), "did you mean 'tiny'"),
        (("lstm", *QUICK, "--tokenizer", "wrod"), "'word'"),
        (("lstm", *QUICK, "--set", "widht=3"), "did you mean 'width'"),
        (("lstm", *QUICK, "--set", "width"), "--set must be key=value"),
        (("lstm", *QUICK, "--set", "width=wide"), "width must be a whole number"),
        (("lstm", *QUICK, "--set", "width=3", "--set", "width=4"), "gives width twice"),
        (("lstm", *QUICK, "--set", "optimizer=adamm"), "'adam'"),
        (("lstm", *QUICK, "--set", "learning_rate=-1"), "learning_rate must be above 0"),
        (("lstm", *QUICK, "--epochs", "3.5"), "--epochs must be a whole number, got 3.5."),
        (("lstm", *QUICK, "--steps", "abc"), "--steps must be a whole number, got abc."),
        (("lstm", *QUICK, "--minutes=soon"), "--minutes must be a number, got soon."),
        (("lstm", "--data", "markov", "--steps", "0"), "steps must be at least 1"),
        (("lstm", "--data", "markov", "--minutes", "nan"), "minutes must be above 0"),
        (("lstm", *QUICK, "--seed", "-1"), "seed must be at least 0"),
        (("lstm", "--data", "markow"), "did you mean 'markov'"),
        (("lstm", "--data", "markov", "--errors", "ignore"), "'strict' or 'replace'"),
    ],
)
def test_invalid_arguments_are_refused(lmlab, tmp_path: Path, arguments, message) -> None:
    result = lmlab("train", *arguments, "--out", tmp_path / "run")
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_existing_run_is_not_overwritten(lmlab, runs: dict[str, Path]) -> None:
    before = (runs["lstm"] / "model.safetensors").read_bytes()
    result = lmlab("train", "lstm", "--out", runs["lstm"], *QUICK)
    assert result.code == 2
    assert "already holds a run" in result.err
    assert (runs["lstm"] / "model.safetensors").read_bytes() == before


def test_non_utf8_corpus_is_refused_or_replaced(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"one two\n" * 30 + "caf\xe9 two\n".encode("latin-1"))
    command = ("train", "lstm", "--data", file, "--size", "tiny", "--steps", "1")
    strict = lmlab(*command, "--out", tmp_path / "strict")
    assert strict.code == 2
    assert f"{file}, line 31: byte 0xe9 at position 4 is not UTF-8" in strict.err
    assert lmlab(*command, "--out", tmp_path / "run", "--errors", "replace").code == 0


def test_empty_corpus_is_refused(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    result = lmlab("train", "ngram", "--data", file, "--out", tmp_path / "run")
    assert result.code == 2
    assert "holds no example" in result.err
