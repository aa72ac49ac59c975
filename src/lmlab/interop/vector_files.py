"""Text and token embeddings written to an .npz file (no pickle), streamed in bounded memory.

| field | shape | what it is |
|---|---|---|
| vectors | (N, W) float32; with tokens (M, W) | a vector for each text, or for each token |
| texts | uint8 | a JSON list of the N texts in UTF-8: `json.loads(bytes(file["texts"]))` |
| lines | (N,) int64 | the line of each text in its file, or its number, from 1 |
| truncated | (N,) bool | whether the text was truncated to the model's maximum length |
| about | uint8 | a JSON object: system, run, layer, pooling |

and with tokens

| offsets | (N + 1,) int64 | the tokens of text i are rows offsets[i] to offsets[i + 1] |
| tokens | (M,) str | as the vocabulary spells them |
| starts, ends | (M,) int64 | the characters [start, end) of each token in its text |
| special | (M,) bool | whether it is a special token |

Texts are JSON, not an array of strings: numpy would pad every entry to the longest text.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lmlab.core.atomic_files import TEMPORARY, new_file, telling_disk_errors
from lmlab.core.errors import UserError
from lmlab.scoring.text_embeddings import TextEmbedding

COPY_CHUNK_BYTES = 2**22
SUFFIX = ".npz"


def check_vector_path(path: Path) -> None:
    """Raise a UserError if vectors can't be written to a path, before anything is computed."""
    if path.suffix != SUFFIX:
        raise UserError(f"--out must end in {SUFFIX}, got {path}; try {path.with_suffix(SUFFIX)}.")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; give the name of a file in it.")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write {path.name} to; create it.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path.parent} can't be written to; choose a folder you may write to.")


class _ColumnFile:
    """One array of the file, appended to on disk."""

    def __init__(self, folder: Path, dtype: str, width: int | None = None) -> None:
        self.dtype, self.width, self.rows = np.dtype(dtype), width, 0
        self.file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 the writer closes it
            dir=folder, prefix=TEMPORARY
        )

    def add(self, values: NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).tobytes())
        self.rows += len(values)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,) if self.width is None else (self.rows, self.width)

    def pieces(self) -> Iterator[bytes]:
        self.file.seek(0)
        while piece := self.file.read(COPY_CHUNK_BYTES):
            yield piece


class VectorWriter:
    """Writes embeddings of texts one by one, in bounded memory and atomically.

    A context manager: on an error no file is left behind.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        check_vector_path(path)
        self.path, self.about = path, about
        self.texts, self.truncated, self.width = 0, 0, 0
        self._columns: dict[str, _ColumnFile] = {}
        self._spellings: dict[str, int] = {}
        """Index of each distinct token string so far."""

    def __enter__(self) -> VectorWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                with telling_disk_errors(self.path):
                    self._assemble()
        finally:
            for column in self._columns.values():
                column.file.close()

    def add(self, encoded: TextEmbedding, line: int) -> None:
        """Append a text from a line of its file."""
        with telling_disk_errors(self.path):
            vectors = encoded.token_vectors
            if vectors is None:
                assert encoded.vector is not None
                vectors = encoded.vector[None]
            self.width = vectors.shape[1]
            self._column("vectors", "<f4", self.width).add(vectors)
            separator = b"[" if not self.texts else b", "
            encoded_json = json.dumps(encoded.text, ensure_ascii=False).encode("utf-8", "replace")
            self._column("texts", "u1").add(np.frombuffer(separator + encoded_json, np.uint8))
            self._column("lines", "<i8").add(np.array([line]))
            self._column("truncated", "?").add(np.array([encoded.truncated]))
            if encoded.token_vectors is not None:
                self._add_tokens(encoded)
            self.texts += 1
            self.truncated += encoded.truncated

    def _add_tokens(self, encoded: TextEmbedding) -> None:
        if not self.texts:
            self._column("offsets", "<i8").add(np.array([0]))
        self._column("offsets", "<i8").add(np.array([self._columns["vectors"].rows]))
        numbers = [self._spellings.setdefault(t, len(self._spellings)) for t in encoded.tokens]
        self._column("tokens", "<i4").add(np.array(numbers))
        spans = np.array(encoded.spans, dtype=np.int64).reshape(-1, 2)
        self._column("starts", "<i8").add(spans[:, 0])
        self._column("ends", "<i8").add(spans[:, 1])
        self._column("special", "?").add(np.array(encoded.special))

    def _column(self, name: str, dtype: str, width: int | None = None) -> _ColumnFile:
        if name not in self._columns:
            self._columns[name] = _ColumnFile(self.path.parent, dtype, width)
        return self._columns[name]

    def _assemble(self) -> None:
        if not self.texts:
            raise UserError("there is no text to encode; give at least one line.")
        self._column("texts", "u1").add(np.frombuffer(b"]", np.uint8))
        about_json = json.dumps(self.about, ensure_ascii=False).encode("utf-8", "replace")
        self._column("about", "u1").add(np.frombuffer(about_json, np.uint8))
        with new_file(self.path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, column in self._columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    if name == "tokens":
                        self._write_tokens(member, column)
                    else:
                        _write_header(member, column.dtype, column.shape)
                        for piece in column.pieces():
                            member.write(piece)

    def _write_tokens(self, member: IO[bytes], column: _ColumnFile) -> None:
        """Write the token strings, padded to the longest."""
        spelled = np.array(list(self._spellings), dtype=np.str_).astype("<U")
        _write_header(member, spelled.dtype, column.shape)
        for piece in column.pieces():
            member.write(spelled[np.frombuffer(piece, column.dtype)].tobytes())


def _write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)
