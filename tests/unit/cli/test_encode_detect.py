"""`lmlab encode` and `lmlab detect`: what they write, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lmlab as package
from lmlab.cli.main import main

TEXTS = ["the dog sleeps", "a cat sees mary", "mary sleeps"]


@pytest.fixture(scope="module")
def electra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("detector") / "electra"
    words = ("--size", "tiny", "--steps", "2", "--data", "grammar", "--set", "length=44")
    assert main(["train", "electra", "--out", str(run), *words]) == 0
    return run


def opened(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_a_vector_per_text_with_its_line(lmlab, runs, tmp_path: Path) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "vectors.npz"
    file.write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n   \n{TEXTS[2]}\n")
    result = lmlab("encode", runs["lstm"], file, "--out", out)
    assert (result.code, result.out) == (0, f"3 texts, a vector per text of 16 numbers: {out}\n")
    found = opened(out)
    assert set(found) == {"vectors", "texts", "lines", "truncated", "about"}
    assert json.loads(bytes(found["texts"])) == TEXTS
    assert found["lines"].tolist() == [1, 3, 5]
    assert not found["truncated"].any() and found["vectors"].dtype == np.float32
    expected = [each.vector for each in package.load(runs["lstm"]).encode(TEXTS)]
    np.testing.assert_allclose(found["vectors"], expected, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "vectors.npz"]


def test_a_vector_per_token_with_its_characters(lmlab, runs, tmp_path: Path) -> None:
    out = tmp_path / "tokens.npz"
    texts = [word for text in TEXTS for word in ("--text", text)]
    told = lmlab("encode", runs["lstm"], *texts, "--out", out, "--per-token", "--json")
    assert json.loads(told.out) == {
        "file": str(out),
        "texts": 3,
        "width": 16,
        "per_token": True,
        "truncated": 0,
    }
    found, texts = opened(out), TEXTS
    assert found["offsets"].tolist() == [0, 5, 11, 15] and found["vectors"].shape == (15, 16)
    for number, text in enumerate(texts):
        rows = slice(found["offsets"][number], found["offsets"][number + 1])
        starts, ends = found["starts"][rows], found["ends"][rows]
        own = ~found["special"][rows]
        words = [text[a:b] for a, b in zip(starts[own], ends[own], strict=True)]
        assert found["tokens"][rows][own].tolist() == words == text.split()
        assert found["tokens"][rows][~own].tolist() == ["<s>", "</s>"]


def test_texts_longer_than_the_model_reads_are_told(lmlab, electra, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npz"
    long = " ".join(["the dog sees"] * 20)
    result = lmlab("encode", electra, "--text", "a cat", "--text", long, "--out", out)
    assert "1 of 2 texts are longer than the model reads" in result.err
    assert opened(out)["truncated"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "--out is missing"),
        (("--out", "vectors.txt"), "--out must end in .npz, got vectors.txt; try vectors.npz."),
        (("--out", "nowhere/vectors.npz"), "there is no folder nowhere"),
        (("--layer", "7"), "--layer must be between -2 and 1 for this lstm"),
        (("--pooling", "meen"), "no pooling called 'meen'; did you mean 'mean'"),
        (("--pooling", "own"), "--pooling own does not apply to lstm"),
        (("--per-token", "--pooling", "max"), "--pooling does not apply to --per-token"),
    ],
)
def test_what_does_not_fit_is_one_sentence(lmlab, runs, tmp_path, arguments, sentence) -> None:
    given = ("--out", tmp_path / "vectors.npz") if arguments and "--out" not in arguments else ()
    result = lmlab("encode", runs["lstm"], "--text", "a cat", *arguments, *given)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_ngram_and_an_empty_file_have_no_vectors(lmlab, runs, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "vectors.npz")
    assert "ngram has no hidden states" in lmlab("encode", runs["ngram"], "--text", "a", *out).err
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    result = lmlab("encode", runs["lstm"], empty, *out)
    assert result.code == 2 and result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_a_damaged_file_leaves_nothing_behind(lmlab, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(b"a cat\n" * 2000 + b"\xff\n")
    result = lmlab("encode", runs["lstm"], file, "--out", tmp_path / "vectors.npz")
    assert result.code == 2 and "not UTF-8" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_detected_tokens_are_marked(lmlab, electra, tmp_path: Path) -> None:
    told = json.loads(lmlab("detect", electra, *TEXTS, "--json").out)
    assert [each["text"] for each in told] == TEXTS
    values = [token["probability"] for token in told[0]["tokens"]]
    assert all(0 < value < 1 for value in values)
    # Marked from the highest probability on: one token of the first text, in brackets.
    highest = max(values)
    shown = lmlab("detect", electra, TEXTS[0], "--threshold", highest).out.splitlines()
    words = TEXTS[0].split()
    words[values.index(highest)] = f"[{words[values.index(highest)]}]"
    assert shown[0] == " ".join(words)
    assert shown[1].split() == ["token", "P(replaced)", "characters"] and len(shown) == 5
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    assert json.loads(lmlab("detect", electra, "--file", file, "--json").out) == told


def test_detection_needs_a_detector(lmlab, runs, electra) -> None:
    result = lmlab("detect", runs["lstm"], "a cat")
    assert result.code == 2 and "electra" in result.err and result.err.count("\n") == 1
    assert "exactly one of" in lmlab("detect", electra).err
    assert "at most 44 tokens" in lmlab("detect", electra, "a cat " * 40).err
