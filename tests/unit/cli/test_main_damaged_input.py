"""Damaged files and excessive values on the command line: one sentence, exit code 2."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzz.formats import unverified

import lmlab as laboratory
from lmlab.core.errors import UserError
from lmlab.core.limits import set_limit

from .conftest import Command, Result

TRAIN = ("train", "--data", "grammar", "--size", "tiny", "--out", "{lstm}/../new")
TEXT = ("--text", "the dog sleeps")


def assert_refused(result: Result, message: str) -> None:
    """Assert that the command failed with one sentence and no traceback."""
    assert result.code == 2, result
    assert [line for line in result.err.splitlines() if line.startswith("lmlab: ")] == [
        result.err.strip().splitlines()[-1]
    ]
    assert message in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sample", "{lstm}", "-n", 10**12), "at most 1,000,000"),
        (("sample", "{lstm}", "--max-length", 10**12), "at most 100,000"),
        (("sample", "{lstm}", "--method", "beam", "--beam", 2**31 - 1), "at most 1,000"),
        (("score", "{lstm}", *TEXT, "--positions", "1-99999999999"), "at most 1,000,000"),
        (("score", "{lstm}", *TEXT, "--positions", "²"), "must be numbers"),
        (("score", "{lstm}", *TEXT, "--positions", "9" * 5000), "must be numbers"),
        (("cloze", "{lstm}", "--seed", -1), "seed must be from 0"),
        (("compare", "{lstm}", "{ngram}", "--seed", -1), "seed must be from 0"),
        (("show-objective", "gpt", "--text", "\udcff"), "not UTF-8"),
        ((*TRAIN, "ngram", "--set", f"order={10**12}"), "at most 100, got"),
        ((*TRAIN, "lstm", "--tokenizer", "bpe", "--set", f"vocabulary_size={10**12}"), "1,000,000"),
        (("ablate", "mgru", *TRAIN[1:], "--seeds", 10**12), "at most 1,000"),
        (("--limit", "wings=3", "systems"), "no limit called"),
        (("--limit", "beam=2", "sample", "{lstm}", "--method", "beam", "--beam", 3), "at most 2"),
    ],
)
def test_values_over_the_limits_are_refused(
    lmlab: Command, runs: dict[str, Path], arguments, message: str
):
    try:
        assert_refused(lmlab(*(str(argument).format(**runs) for argument in arguments)), message)
    finally:
        set_limit("beam", None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("system", 5, "system must be a text"),
        ("task", [1], "task must be an object"),
        ("vocabulary", {"size": 70, "pod": 0}, "vocabulary: there is no field 'pod'"),
        ("vocabulary", {"size": 10**12}, "not the one that the run was trained with"),
        ("layout", {"kind": "words"}, "layout: kind must be one of"),
        ("corpus", {"name": 1}, "corpus: name must be a text"),
        ("training", {"steps": "x"}, "training: steps must be"),
        ("system_config.width", 1.5, "width must be a whole number"),
        ("system_config.width", None, "width must be a whole number"),
        ("system_config.width", 10**12, "of memory"),
        ("system_config.width", 10**30, "width must be a whole number"),
        ("system_config.layers", 10**7, "parameter tensors"),
    ],
)
def test_damaged_config_is_refused(
    lmlab: Command, runs: dict[str, Path], tmp_path: Path, key: str, value: Any, message: str
):
    run = tmp_path / "run"
    shutil.copytree(runs["lstm"], run)
    config = json.loads((run / "config.json").read_text())
    part, _, name = key.partition(".")
    if name:
        config[part][name] = value
    else:
        config[part] = value
    (run / "config.json").write_text(json.dumps(config))
    assert_refused(lmlab(*unverified(["score", str(run), *TEXT])), message)


@pytest.mark.parametrize("content", ["[" * 200_000, '{"format": ' + "9" * 5000 + "}", "", "5"])
def test_config_that_is_not_an_object_is_refused(
    lmlab: Command, runs: dict[str, Path], tmp_path: Path, content: str
):
    run = tmp_path / "run"
    shutil.copytree(runs["lstm"], run)
    (run / "config.json").write_text(content)
    assert_refused(
        lmlab(*unverified(["score", str(run), *TEXT])), "is not the config.json of a run"
    )


def test_gzip_bomb_exceeds_the_line_limit(lmlab: Command, tmp_path: Path):
    bomb = tmp_path / "bomb.txt.gz"
    bomb.write_bytes(gzip.compress(b"a" * 2_000_000))
    set_limit("line", 1_000_000)
    try:
        assert_refused(lmlab("data", "describe", bomb), "at most 1,000,000")
    finally:
        set_limit("line", None)


def test_vocabulary_limit(lmlab: Command, tmp_path: Path):
    (tmp_path / "words.txt").write_text("".join(f"w{n} w{n}\n" for n in range(200)))
    set_limit("vocabulary", 100)
    try:
        train = ("train", "ngram", "--data", tmp_path / "words.txt", "--out", tmp_path / "run")
        assert_refused(lmlab(*train), "vocabulary_size")
        assert lmlab(*train, "--set", "vocabulary_size=150").code == 0
    finally:
        set_limit("vocabulary", None)


def test_huge_numbers_in_files_are_refused(lmlab: Command, tmp_path: Path):
    (tmp_path / "babi").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "babi" / f"qa1_{split}.txt").write_text("9" * 5000 + " Mary left.\n")
    assert_refused(
        lmlab("data", "describe", f"babi-1:{tmp_path / 'babi'}"), "expected a number first"
    )
    (tmp_path / "x.arpa").write_text("\\data\\\nngram 1=" + "9" * 5000 + "\n")
    assert_refused(
        lmlab("import-arpa", tmp_path / "x.arpa", "--out", tmp_path / "r"), "and a count"
    )
    (tmp_path / "v.txt").write_text("68719476736 1\ncat 1\n")
    assert_refused(
        lmlab("words", tmp_path / "v.txt", "nearest", "cat"), "declares 68719476736 words"
    )


def test_import_hf_refuses_config_larger_than_its_weights(lmlab: Command, tmp_path: Path):
    run, out = tmp_path / "gpt", tmp_path / "hf"
    data = ("--data", "grammar", "--size", "tiny", "--steps", 1)
    assert lmlab("train", "gpt", *data, "--out", run).code == 0
    assert lmlab("export-hf", run, out).code == 0
    config = json.loads((out / "config.json").read_text())
    for key, value, message in (
        ("n_layer", 10**7, "declares 10,000,000"),
        ("n_inner", 10**12, "memory"),
    ):
        (out / "config.json").write_text(json.dumps({**config, key: value}))
        assert_refused(lmlab("import-hf", out, "--out", tmp_path / "new"), message)


def test_python_api_validates_its_arguments(runs: dict[str, Path], tmp_path: Path):
    with pytest.raises(UserError, match=r"given by its name, .* lmlab\.wrap"):
        laboratory.train(torch.nn.Linear(1, 1), data="grammar", out=tmp_path / "run")
    with pytest.raises(UserError, match="steps must be a whole number or none, got 'x'"):
        laboratory.train("lstm", data="grammar", out=tmp_path / "run", steps="x")
    with pytest.raises(TypeError, match="'data' and 'out'"):
        laboratory.train("lstm")
    model = laboratory.load(runs["lstm"])
    for call in (model.score, model.encode):
        with pytest.raises(UserError, match="text 1 must be a string, got NoneType"):
            call([None])
        with pytest.raises(UserError, match="not UTF-8"):
            call(["\ud800"])
        for nothing in (None, 5):
            with pytest.raises(UserError, match="takes a list of texts, got"):
                call(nothing)
    for options, message in (
        ({"n": "a"}, "number of texts must be a whole number"),
        ({"n": 1.5}, "number of texts must be a whole number"),
        ({"max_length": 0}, "greatest length must be a whole number, 1 or more"),
        ({"seed": "x"}, "seed must be from 0"),
        ({"prefix": 5}, "prefix must be a string"),
    ):
        with pytest.raises(UserError, match=message):
            model.sample(**options)
