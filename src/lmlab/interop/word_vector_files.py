"""Files of word vectors, of any format: word2vec's and fastText's with a heading, GloVe's without.

GloVe's text (Pennington et al. 2014) has a line for each word, the word and its numbers separated
by spaces, and no heading. Its words may contain spaces: the last numbers of a line are the vector,
as many as the first line has.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer
from lmlab.interop.word2vec import MAX_WORD_BYTES, first_occurrences, read_word2vec
from lmlab.scoring.word_vectors import WordVectors

MAX_LINE_BYTES = 1 << 20
"""Maximum bytes of a line."""


def read_word_vectors(path: Path | str) -> WordVectors:
    """Read word vectors from a file of word2vec, fastText (.vec) or GloVe, told by its first line.

    Of a repeated word the first occurrence is kept.
    """
    try:
        with Path(path).open("rb") as file:
            parts = file.readline(MAX_LINE_BYTES).split()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    if len(parts) == 2 and None not in map(parse_integer, parts):
        return read_word2vec(path)
    if len(parts) < 2 or not all(map(_is_number, parts[1:])):
        raise UserError(
            f"{path} is no file of word vectors: its first line is neither the number of words and "
            "the width (word2vec, fastText) nor a word and its numbers (GloVe)."
        )
    return _read_glove(Path(path), len(parts) - 1)


def _read_glove(path: Path, width: int) -> WordVectors:
    words: list[str] = []
    vectors: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_WORD_BYTES + 64 * width):
            number += 1
            parts = line.rstrip(b"\r\n ").rsplit(b" ", width)
            try:
                if len(parts) != width + 1:
                    raise ValueError
                vectors.append(np.array([float(part) for part in parts[1:]], dtype=np.float32))
            except ValueError as error:
                raise UserError(
                    f"{path}, line {number}: expected a word and {width} numbers, got "
                    f"{line[:40].decode(errors='replace').strip()!r}."
                ) from error
            words.append(parts[0].decode(errors="replace"))
    return first_occurrences(words, np.stack(vectors))


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
