"""A missing file is reported as such by every option that takes a built-in name or a path."""

from __future__ import annotations

import pytest

TRAIN = ("train", "ngram", "--out", "x")
PATH_OPTIONS = {
    "train --data": (*TRAIN, "--data"),
    "train --tokenizer": (*TRAIN, "--data", "grammar", "--tokenizer"),
    "train --documents": ("train", "realm", "--data", "capitals", "--out", "x", "--documents"),
    "train --knowledge": ("train", "eae", "--data", "capitals", "--out", "x", "--knowledge"),
    "data describe": ("data", "describe"),
    "index build": ("index", "build", "--encoder", "bm25", "--out", "x"),
    "compare": ("compare", "RUN", "--data"),
    "finetune": ("finetune", "RUN", "--task", "classify", "--out", "x", "--data"),
    "finetune hops": ("finetune", "RUN", "--task", "hops", "--out", "x", "--data"),
    "prompt": ("prompt", "RUN", "--task", "classify", "--data"),
}


@pytest.mark.parametrize("name", ["nope.txt", "some/nope", "nope.json"])
@pytest.mark.parametrize("option", PATH_OPTIONS)
def test_missing_path_is_reported_as_missing_file(
    lmlab, runs, tmp_path, monkeypatch, option, name
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [runs["lstm"] if word == "RUN" else word for word in PATH_OPTIONS[option]]
    result = lmlab(*arguments, name)
    assert (result.code, result.out) == (2, "")
    assert f"there is no file {name}" in result.err or f"file or folder {name};" in result.err
    assert "choose from" not in result.err
    assert "did you mean" not in result.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train --data", "did you mean"),
        ("train --tokenizer", "there is no tokenizer called 'nope'; "),
        ("train --documents", "choose from capitals, wordnet."),
        ("train --knowledge", "choose from capitals,"),
        ("index build", "choose from capitals, wordnet."),
        ("finetune", "choose from"),
        ("finetune hops", "choose from wordnet-hops."),
    ],
)
def test_unknown_name_error_suggests_known_names(
    lmlab, runs, tmp_path, monkeypatch, option, message
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [runs["lstm"] if word == "RUN" else word for word in PATH_OPTIONS[option]]
    result = lmlab(*arguments, "nope")
    assert result.code == 2
    assert message in result.err


def test_unknown_corpus_error_points_to_data_list(lmlab) -> None:
    assert "lmlab data list lists all names." in lmlab("data", "describe", "zzzz:some/path").err
    assert "lmlab data list lists them all." in lmlab("data", "describe", "capitols").err


def test_missing_run_is_not_reported_as_unknown_system(lmlab) -> None:
    assert "there is no run at nope.d;" in lmlab("show-objective", "nope.d").err


def test_file_of_wrong_format_is_not_reported_missing(lmlab, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("the dog\n")
    result = lmlab(*PATH_OPTIONS["train --tokenizer"], "words.txt")
    assert result.code == 2
    assert result.err.startswith("lmlab: words.txt is no tokenizer; choose from a tokenizer.json, ")


@pytest.mark.parametrize("tokenizer", ["foo", "words.txt", "none.json"])
def test_refused_tokenizer_leaves_no_folder(lmlab, tmp_path, monkeypatch, tokenizer) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("train", "lstm"), ("ablate", "gru-minimal", "--switches", "4")):
        options = ("--data", "grammar", "--size", "tiny", "--out", "runs/new")
        assert lmlab(*words, *options, "--tokenizer", tokenizer).code == 2
        assert list(tmp_path.iterdir()) == []
