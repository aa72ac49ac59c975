"""`lmlab encode` and `lmlab detect`: output files, printed tables and errors."""

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
    options = ("--size", "tiny", "--steps", "2", "--data", "grammar", "--set", "length=44")
    assert main(["train", "electra", "--out", str(run), *options]) == 0
    return run


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_encode_writes_one_vector_per_text_with_line_numbers(lmlab, runs, tmp_path: Path) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "vectors.npz"
    file.write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n   \n{TEXTS[2]}\n")
    result = lmlab("encode", runs["lstm"], file, "--out", out)
    assert (result.code, result.out) == (0, f"3 texts, a vector per text of 16 numbers: {out}\n")
    arrays = load_arrays(out)
    assert set(arrays) == {"vectors", "texts", "lines", "truncated", "about"}
    assert json.loads(bytes(arrays["texts"])) == TEXTS
    assert arrays["lines"].tolist() == [1, 3, 5]
    assert not arrays["truncated"].any() and arrays["vectors"].dtype == np.float32
    expected = [encoded.vector for encoded in package.load(runs["lstm"]).encode(TEXTS)]
    np.testing.assert_allclose(arrays["vectors"], expected, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "vectors.npz"]


def test_encode_per_token_vectors_with_character_offsets(lmlab, runs, tmp_path: Path) -> None:
    out = tmp_path / "tokens.npz"
    texts = [word for text in TEXTS for word in ("--text", text)]
    result = lmlab("encode", runs["lstm"], *texts, "--out", out, "--per-token", "--json")
    assert json.loads(result.out) == {
        "file": str(out),
        "texts": 3,
        "width": 16,
        "per_token": True,
        "truncated": 0,
    }
    arrays, texts = load_arrays(out), TEXTS
    assert arrays["offsets"].tolist() == [0, 5, 11, 15] and arrays["vectors"].shape == (15, 16)
    for number, text in enumerate(texts):
        rows = slice(arrays["offsets"][number], arrays["offsets"][number + 1])
        starts, ends = arrays["starts"][rows], arrays["ends"][rows]
        regular = ~arrays["special"][rows]
        words = [text[a:b] for a, b in zip(starts[regular], ends[regular], strict=True)]
        assert arrays["tokens"][rows][regular].tolist() == words == text.split()
        assert arrays["tokens"][rows][~regular].tolist() == ["<s>", "</s>"]


def test_encode_reports_truncated_texts(lmlab, electra, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npz"
    long = " ".join(["the dog sees"] * 20)
    result = lmlab("encode", electra, "--text", "a cat", "--text", long, "--out", out)
    assert "1 of 2 texts are longer than the model reads" in result.err
    assert load_arrays(out)["truncated"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_encode_usage_errors_are_one_sentence(lmlab, runs, tmp_path, arguments, message) -> None:
    given = ("--out", tmp_path / "vectors.npz") if arguments and "--out" not in arguments else ()
    result = lmlab("encode", runs["lstm"], "--text", "a cat", *arguments, *given)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_encode_refuses_ngram_and_empty_file(lmlab, runs, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "vectors.npz")
    assert "ngram has no hidden states" in lmlab("encode", runs["ngram"], "--text", "a", *out).err
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    result = lmlab("encode", runs["lstm"], empty, *out)
    assert result.code == 2 and result.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_encode_of_damaged_file_writes_no_output(lmlab, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(b"a cat\n" * 2000 + b"\xff\n")
    result = lmlab("encode", runs["lstm"], file, "--out", tmp_path / "vectors.npz")
    assert result.code == 2 and "not UTF-8" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_detect_marks_tokens_over_the_threshold(lmlab, electra, tmp_path: Path) -> None:
    output = json.loads(lmlab("detect", electra, *TEXTS, "--json").out)
    assert [record["text"] for record in output] == TEXTS
    values = [token["probability"] for token in output[0]["tokens"]]
    assert all(0 < value < 1 for value in values)
    # With the highest probability as threshold, one token of the first text is in brackets.
    highest = max(values)
    shown = lmlab("detect", electra, TEXTS[0], "--threshold", highest).out.splitlines()
    words = TEXTS[0].split()
    words[values.index(highest)] = f"[{words[values.index(highest)]}]"
    assert shown[0] == " ".join(words)
    assert shown[1].split() == ["token", "P(replaced)", "characters"] and len(shown) == 5
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    assert json.loads(lmlab("detect", electra, "--file", file, "--json").out) == output


def test_detect_refuses_systems_without_detector(lmlab, runs, electra) -> None:
    result = lmlab("detect", runs["lstm"], "a cat")
    assert result.code == 2 and "electra" in result.err and result.err.count("\n") == 1
    assert "exactly one of" in lmlab("detect", electra).err
    assert "at most 44 tokens" in lmlab("detect", electra, "a cat " * 40).err
