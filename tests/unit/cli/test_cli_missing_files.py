"""A missing file is called a missing file, in every option that takes a built-in name or a path."""

from __future__ import annotations

import pytest

TRAIN = ("train", "ngram", "--out", "x")
TAKES_A_PATH = {
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
@pytest.mark.parametrize("verb", TAKES_A_PATH)
def test_what_looks_like_a_path_is_a_missing_file(
    lmlab, runs, tmp_path, monkeypatch, verb, name
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [runs["lstm"] if word == "RUN" else word for word in TAKES_A_PATH[verb]]
    result = lmlab(*arguments, name)
    assert (result.code, result.out) == (2, "")
    assert f"there is no file {name}" in result.err or f"file or folder {name};" in result.err
    assert "choose from" not in result.err
    assert "did you mean" not in result.err


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("train --data", "did you mean"),
        ("train --tokenizer", "there is no tokeniser called 'nope'; "),
        ("train --documents", "choose from capitals, wordnet."),
        ("train --knowledge", "choose from capitals,"),
        ("index build", "choose from capitals, wordnet."),
        ("finetune", "choose from"),
        ("finetune hops", "choose from wordnet-hops."),
    ],
)
def test_a_bare_word_is_a_name_with_the_known_ones_in_the_answer(
    lmlab, runs, tmp_path, monkeypatch, verb, said
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [runs["lstm"] if word == "RUN" else word for word in TAKES_A_PATH[verb]]
    result = lmlab(*arguments, "nope")
    assert result.code == 2
    assert said in result.err


def test_an_unknown_corpus_or_protocol_says_where_all_are_listed(lmlab) -> None:
    assert "lmlab data list lists all names." in lmlab("data", "describe", "zzzz:some/path").err
    assert "lmlab data list lists them all." in lmlab("data", "describe", "capitols").err


def test_a_missing_run_is_no_mistyped_system(lmlab) -> None:
    assert "there is no run at nope.d;" in lmlab("show-objective", "nope.d").err


def test_a_file_of_another_kind_is_not_called_missing(lmlab, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("the dog\n")
    result = lmlab(*TAKES_A_PATH["train --tokenizer"], "words.txt")
    assert result.code == 2
    assert result.err.startswith("lmlab: words.txt is no tokeniser; choose from a tokenizer.json, ")


@pytest.mark.parametrize("tokenizer", ["foo", "words.txt", "none.json"])
def test_a_refused_tokenizer_leaves_no_folder(lmlab, tmp_path, monkeypatch, tokenizer) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("train", "lstm"), ("ablate", "gru-minimal", "--switches", "4")):
        options = ("--data", "grammar", "--size", "tiny", "--out", "runs/new")
        assert lmlab(*words, *options, "--tokenizer", tokenizer).code == 2
        assert list(tmp_path.iterdir()) == []
