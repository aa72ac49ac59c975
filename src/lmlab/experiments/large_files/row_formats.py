"""File formats of rows: a part for each chunk, and all parts joined to one output.

A part is the output's lines without a header (JSON lines, CSV), a Parquet file, or an .npy array.
Joining copies parts in the order of the input, in constant memory.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from itertools import islice
from typing import IO, Any, ClassVar

from lmlab.core.errors import UserError
from lmlab.experiments.large_files.result_rows import Row, VectorRow, columns_of
from lmlab.experiments.large_files.storage import copy_file, open_file, written_file
from lmlab.scoring.score_tables import csv_cell

ROWS_AT_ONCE = 1024
"""Rows of a Parquet row group, or of an array, that are held in memory."""
Index = list[dict[str, Any]]
"""What a format records of a part beside it."""


class RowFormat(ABC):
    """How rows are written to parts, and parts joined."""

    takes_vectors: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, row_class: type) -> None:
        self.row_class = row_class
        self.columns = columns_of(row_class)

    @abstractmethod
    def write_part(self, rows: Iterable[Row], file: IO[bytes]) -> Index:
        """Write the rows of a chunk."""

    @abstractmethod
    def join(self, parts: Sequence[str], out: str, index: Callable[[int], Index]) -> None:
        """Write the output of all parts; `index` gives what a part recorded."""

    def is_there(self, out: str, exists: Callable[[str], bool]) -> bool:
        """Whether there is an output of that name."""
        return exists(out)


class JsonLinesRows(RowFormat):
    """A JSON object for each row."""

    suffixes = (".jsonl", ".ndjson")

    def write_part(self, rows: Iterable[Row], file: IO[bytes]) -> Index:
        for row in rows:
            file.write(json_line(vars(row)))
        return []

    def join(self, parts: Sequence[str], out: str, index: Callable[[int], Index]) -> None:
        with written_file(out) as joined:
            _append(parts, joined)


class CsvRows(RowFormat):
    """Comma-separated values with a header, written as `lmlab score --csv` does."""

    suffixes = (".csv",)
    takes_vectors = False

    def write_part(self, rows: Iterable[Row], file: IO[bytes]) -> Index:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        for row in rows:
            values = (getattr(row, name) for name in self.columns)
            writer.writerow([csv_cell(value, raw=False) for value in values])
        text.flush()
        text.detach()  # the file is the caller's
        return []

    def join(self, parts: Sequence[str], out: str, index: Callable[[int], Index]) -> None:
        with written_file(out) as joined:
            joined.write((",".join(self.columns) + "\n").encode())
            _append(parts, joined)


class ParquetRows(RowFormat):
    """Apache Parquet, by pyarrow (extra `tables`)."""

    suffixes = (".parquet",)

    def __init__(self, row_class: type) -> None:
        super().__init__(row_class)
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UserError(
                "Parquet needs pyarrow; pip install 'lmlab[tables]', or write .jsonl."
            ) from None
        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        types = {"int": pyarrow.int64(), "bool": pyarrow.bool_(), "float": pyarrow.float64()}
        types["Sequence[float]"] = pyarrow.list_(pyarrow.float32())
        hints = ((spec.name, str(spec.type).removesuffix(" | None")) for spec in fields(row_class))
        self._schema = pyarrow.schema(
            [(name, types.get(hint, pyarrow.string())) for name, hint in hints]
        )

    def write_part(self, rows: Iterable[Row], file: IO[bytes]) -> Index:
        waiting = iter(rows)
        with self._writer(file) as writer:
            while batch := list(islice(waiting, ROWS_AT_ONCE)):
                columns = {name: [getattr(row, name) for row in batch] for name in self.columns}
                writer.write_table(self._arrow.table(columns, schema=self._schema))
        return []

    def join(self, parts: Sequence[str], out: str, index: Callable[[int], Index]) -> None:
        with written_file(out) as joined, self._writer(joined) as writer:
            for part in parts:
                with open_file(part) as file:
                    for batch in self._parquet.ParquetFile(file).iter_batches(ROWS_AT_ONCE):
                        writer.write_batch(batch)

    def _writer(self, file: IO[bytes]) -> AbstractContextManager[Any]:
        writer: AbstractContextManager[Any] = self._parquet.ParquetWriter(file, self._schema)
        return writer


class ArrayShards(RowFormat):
    """Vectors as one .npy array for each chunk, and an index of their texts as JSON lines.

    `--out vectors.npy` gives vectors-00001-of-00012.npy … and vectors.jsonl, whose row i is that of
    the i-th vector, with the name of its shard.
    """

    suffixes = (".npy",)

    def __init__(self, row_class: type) -> None:
        super().__init__(row_class)
        if row_class is not VectorRow:
            raise UserError("an .npy file holds vectors alone; give --out a .jsonl or .csv file.")

    def write_part(self, rows: Iterable[Row], file: IO[bytes]) -> Index:
        import numpy as np

        index: Index = []
        vectors = []
        for row in rows:
            vectors.append(np.asarray(row.vector, dtype=np.float32))
            index.append({"line": row.line, "truncated": row.truncated, "text": row.text})
        array = np.stack(vectors) if vectors else np.zeros((0, 0), dtype=np.float32)
        content = io.BytesIO()
        np.lib.format.write_array(content, array, allow_pickle=False)
        file.write(content.getbuffer())
        return index

    def join(self, parts: Sequence[str], out: str, index: Callable[[int], Index]) -> None:
        stem, name = out.removesuffix(".npy"), out.replace("\\", "/").rpartition("/")[2]
        shards = [f"-{n:05}-of-{len(parts):05}.npy" for n in range(1, len(parts) + 1)]
        for part, shard in zip(parts, shards, strict=True):
            with open_file(part) as source, written_file(stem + shard) as target:
                copy_file(source, target)
        with written_file(self._index(out)) as listed:
            for number, shard in enumerate(shards):
                for place, row in enumerate(index(number)):
                    shard_name = name.removesuffix(".npy") + shard
                    listed.write(json_line({"shard": shard_name, "row": place, **row}))

    def is_there(self, out: str, exists: Callable[[str], bool]) -> bool:
        return exists(self._index(out))

    def _index(self, out: str) -> str:
        """The file that is written last."""
        return out.removesuffix(".npy") + ".jsonl"


FORMATS: tuple[type[RowFormat], ...] = (JsonLinesRows, CsvRows, ParquetRows, ArrayShards)


def row_format(out: str, row_class: type) -> RowFormat:
    """The format of an output, by its suffix."""
    for kind in FORMATS:
        if out.lower().endswith(kind.suffixes):
            if row_class is VectorRow and not kind.takes_vectors:
                raise UserError(
                    f"--out {out} can't hold vectors; give a .npz, .parquet, .npy or .jsonl file."
                )
            return kind(row_class)
    known = ", ".join(suffix for kind in FORMATS for suffix in kind.suffixes)
    raise UserError(f"--out must end in one of {known}, got {out}.")


def json_line(record: Mapping[str, Any]) -> bytes:
    """One line of JSON; infinities and nan become null."""
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
    return (json.dumps(plain, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _append(parts: Iterable[str], joined: IO[bytes]) -> None:
    for part in parts:
        with open_file(part) as source:
            copy_file(source, joined)
