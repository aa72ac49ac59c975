"""Files of word vectors: GloVe's text without a heading, and the others by their first line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lmlab
from lmlab.core.errors import UserError
from lmlab.interop.word2vec import write_word2vec
from lmlab.interop.word_vector_files import read_word_vectors
from lmlab.scoring.word_vectors import WordVectors


def test_glove_text_has_no_heading(tmp_path: Path):
    """Words may contain spaces and be numbers; of a repeated word the first is kept."""
    path = tmp_path / "glove.txt"
    path.write_text("the 0.5 -1 2e-3\n. . . 1 2 3\n1999 4 5 6\nthe 7 8 9\n北京 0 0 1\n")
    vectors = lmlab.words(path)
    assert vectors.words == ["the", ". . .", "1999", "北京"]
    rows = [[0.5, -1, 2e-3], [1, 2, 3], [4, 5, 6], [0, 0, 1]]
    assert np.array_equal(vectors.vectors, np.array(rows, np.float32))


@pytest.mark.parametrize("name", ["v.vec", "v.bin"])
def test_files_with_a_heading_are_word2vec(tmp_path: Path, name: str):
    """fastText's .vec is word2vec's text; two whole numbers are a heading and no word."""
    write_word2vec(tmp_path / name, WordVectors(["a", "b"], np.array([[1.0, 2.0], [3.0, 4.0]])))
    assert read_word_vectors(tmp_path / name).words == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no file of word vectors"),
        (b"hello world\n", "no file of word vectors"),
        (b"a 1.5 2\nb 1\n", "line 2: expected a word and 2 numbers, got 'b 1'"),
        (b"a 1.5 2\nb 1 x\n", "line 2: expected a word and 2 numbers, got 'b 1 x'"),
        (b"a 1.5 2\n\n", "line 2: expected a word and 2 numbers"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_word_vectors(tmp_path / "v")
