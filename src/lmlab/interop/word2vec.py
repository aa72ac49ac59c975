"""word2vec file formats, text and binary, read and write (Mikolov et al. 2013).

Both begin with a line of the number of words and the width. Text: one line per word, the word and
its numbers separated by spaces. Binary: the word, a space, and its numbers as little-endian 32-bit
floats; word2vec ends each record with a line feed, other tools omit it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from lmlab.core.atomic_files import new_file
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer
from lmlab.scoring.word_vectors import WordVectors

BINARY_SUFFIX = ".bin"
"""Suffix of binary files."""
MAX_WORD_BYTES = 1 << 16
"""Maximum bytes of a word; more means a malformed file."""


def write_word2vec(path: Path | str, vectors: WordVectors) -> None:
    """Write word vectors atomically, binary if the name ends in .bin, else text.

    Numbers are written in full precision, so that reading restores the same bits.
    """
    path = Path(path)
    spaced = [word for word in vectors.words if not word or any(map(str.isspace, word))]
    if spaced:
        raise UserError(
            f"the word2vec format separates words by spaces, but the word {spaced[0]!r} contains "
            "one or is empty; export a run whose tokens are words."
        )
    with new_file(path) as file:
        file.write(f"{len(vectors)} {vectors.vectors.shape[1]}\n".encode())
        for record in _records(vectors, binary=path.suffix == BINARY_SUFFIX):
            file.write(record)


def _records(vectors: WordVectors, *, binary: bool) -> Iterator[bytes]:
    for word, vector in zip(vectors.words, vectors.vectors, strict=True):
        if binary:
            yield word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n"
        else:
            # The shortest decimal that restores the same 32 bits.
            yield " ".join([word, *(str(number) for number in vector)]).encode() + b"\n"


def read_word2vec(path: Path | str) -> WordVectors:
    """Read word vectors from a file of either format, detected from its content.

    Of a repeated word the first occurrence is kept.
    """
    try:
        with Path(path).open("rb") as file:
            count, width = _heading(file, path)
            data_start = file.tell()
            binary = _is_binary(file, width)
            file.seek(data_start)
            read_records = _read_binary if binary else _read_text
            words, vectors = read_records(file, count, width, path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    return first_occurrences(words, vectors)


def first_occurrences(words: list[str], vectors: NDArray[np.float32]) -> WordVectors:
    """Word vectors without the repetitions of words."""
    first = list({word: index for index, word in reversed(list(enumerate(words)))}.values())
    first.sort()
    return WordVectors([words[index] for index in first], vectors[first])


def _heading(file: BinaryIO, path: Path | str) -> tuple[int, int]:
    parts = file.readline(64).split()
    count, width = map(parse_integer, parts) if len(parts) == 2 else (None, None)
    if count is None or width is None:
        raise UserError(
            f"{path} is not a word2vec file: its first line is not the number of words and the "
            "width."
        )
    # Each word has at least one byte, and each of its numbers two: a space and a digit.
    min_size = 2 * count * width
    file_size = os.fstat(file.fileno()).st_size
    if width < 1 or min_size > file_size:
        raise UserError(
            f"{path} is damaged: its first line declares {count} words of {width} numbers, but "
            f"the file has only {file_size:,} bytes."
        )
    return count, width


def _is_binary(file: BinaryIO, width: int) -> bool:
    """Whether the first record is not a text line of a word and `width` numbers."""
    parts = file.readline(MAX_WORD_BYTES + 64 * width).rstrip(b"\r\n ").split(b" ")
    try:
        return len([float(part) for part in parts[1:]]) != width
    except ValueError:
        return True


def _read_text(
    file: BinaryIO, count: int, width: int, path: Path | str
) -> tuple[list[str], NDArray[np.float32]]:
    words, vectors = [], np.empty((count, width), dtype=np.float32)
    for index in range(count):
        line = file.readline().rstrip(b"\r\n ")
        parts = line.split(b" ")
        try:
            if len(parts) != width + 1:
                raise ValueError
            vectors[index] = [float(part) for part in parts[1:]]
        except ValueError as error:
            raise UserError(
                f"{path}, line {index + 2}: expected a word and {width} numbers, got "
                f"{line[:40].decode(errors='replace')!r}."
            ) from error
        words.append(parts[0].decode(errors="replace"))
    return words, vectors


def _read_binary(
    file: BinaryIO, count: int, width: int, path: Path | str
) -> tuple[list[str], NDArray[np.float32]]:
    words, vectors = [], np.empty((count, width), dtype=np.float32)
    for index in range(count):
        letters = bytearray()
        while (letter := file.read(1)) != b" ":
            if not letter or len(letters) > MAX_WORD_BYTES:
                raise UserError(f"{path} ends early or is damaged at word {index + 1} of {count}.")
            letters += letter
        numbers = file.read(4 * width)
        if len(numbers) != 4 * width:
            raise UserError(f"{path} ends in the middle of word {index + 1} of {count}.")
        # Strip the line feed that ends the previous record.
        words.append(bytes(letters).lstrip(b"\n").decode(errors="replace"))
        vectors[index] = np.frombuffer(numbers, dtype="<f4")
    return words, vectors
