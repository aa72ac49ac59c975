"""word2vec's files: round trips to the bit, and damage told in a sentence."""

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
def test_what_is_written_is_read_back_to_the_bit(tmp_path: Path, name: str):
    write_word2vec(tmp_path / name, WordVectors(WORDS, VECTORS))
    found = read_word2vec(tmp_path / name)
    assert found.words == WORDS and np.array_equal(found.vectors, VECTORS)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_the_text_form_is_words_and_numbers(tmp_path: Path):
    write_word2vec(tmp_path / "v.txt", WordVectors(["a", "b"], np.array([[0.5, -1], [2, 0.25]])))
    assert (tmp_path / "v.txt").read_text() == "2 2\na 0.5 -1.0\nb 2.0 0.25\n"


def test_binary_without_line_feeds_is_read_and_a_word_comes_once(tmp_path: Path):
    """As gensim writes it; the first of two of a name is kept."""
    records = [(b"a", [1.0, 2.0]), (b"b", [3.0, 4.0]), (b"a", [5.0, 6.0])]
    body = b"".join(word + b" " + np.array(row, "<f4").tobytes() for word, row in records)
    (tmp_path / "v.bin").write_bytes(b"3 2\n" + body)
    found = read_word2vec(tmp_path / "v.bin")
    assert found.words == ["a", "b"] and found.vectors.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello\n", "not a word2vec file"),
        (b"9999999999 9999999999\n", "declares 9999999999 words"),
        (b"2 2\na 1 2\nb 1\n", "line 3: expected a word and 2 numbers"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb \0\0", "ends in the middle of word 2"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb", "ends early or is damaged at word 2"),
    ],
)
def test_damage_is_told(tmp_path: Path, content: bytes, says: str):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_word2vec(tmp_path / "v")


def test_a_word_with_a_space_can_not_be_written(tmp_path: Path):
    with pytest.raises(UserError, match="'New York' contains one"):
        write_word2vec(tmp_path / "v.txt", WordVectors(["New York"], np.ones((1, 2))))
    assert not (tmp_path / "v.txt").exists()
    with pytest.raises(UserError, match="cannot read"):
        read_word2vec(tmp_path / "none.bin")
