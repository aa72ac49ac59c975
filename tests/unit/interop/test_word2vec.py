"""word2vec files: bit-exact round trip, and errors for damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.interop.word2vec import read_word2vec, write_word2vec
from lmlab.scoring.word_vectors import WordVectors

WORDS = ["the", "北京", "e-mail", "1.5"]
VECTORS = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32) ** 5


@pytest.mark.parametrize("name", ["v.txt", "v.bin"])
def test_word2vec_round_trip_is_bit_exact(tmp_path: Path, name: str):
    write_word2vec(tmp_path / name, WordVectors(WORDS, VECTORS))
    loaded = read_word2vec(tmp_path / name)
    assert loaded.words == WORDS and np.array_equal(loaded.vectors, VECTORS)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_word2vec_text_format(tmp_path: Path):
    write_word2vec(tmp_path / "v.txt", WordVectors(["a", "b"], np.array([[0.5, -1], [2, 0.25]])))
    assert (tmp_path / "v.txt").read_text() == "2 2\na 0.5 -1.0\nb 2.0 0.25\n"


def test_gensim_binary_is_read_without_duplicate_words(tmp_path: Path):
    """The format gensim writes; the first of two duplicate words wins."""
    records = [(b"a", [1.0, 2.0]), (b"b", [3.0, 4.0]), (b"a", [5.0, 6.0])]
    body = b"".join(word + b" " + np.array(row, "<f4").tobytes() for word, row in records)
    (tmp_path / "v.bin").write_bytes(b"3 2\n" + body)
    loaded = read_word2vec(tmp_path / "v.bin")
    assert loaded.words == ["a", "b"] and loaded.vectors.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\n", "not a word2vec file"),
        (b"9999999999 9999999999\n", "declares 9999999999 words"),
        (b"2 2\na 1 2\nb 1\n", "line 3: expected a word and 2 numbers"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb \0\0", "ends in the middle of word 2"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb", "ends early or is damaged at word 2"),
    ],
)
def test_damaged_files_are_reported(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_word2vec(tmp_path / "v")


def test_word_with_a_space_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="'New York' contains one"):
        write_word2vec(tmp_path / "v.txt", WordVectors(["New York"], np.ones((1, 2))))
    assert not (tmp_path / "v.txt").exists()
    with pytest.raises(UserError, match="cannot read"):
        read_word2vec(tmp_path / "none.bin")
