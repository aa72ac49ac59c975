"""Memory-mapped column store (the cache of tokenised data): numeric columns written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import read_json_object
from lmlab.data.lines import ReadingReport

STORE_FORMAT = 2
"""Version of the file format; a cache of another version is rebuilt."""
LEFTOVER_SECONDS = 24 * 3600.0
"""Seconds after which an unfinished build folder counts as left by a killed process."""

Columns = dict[str, NDArray[Any]]


def cache_key(**parts: object) -> str:
    """Folder name (hash) of a cache entry of this identity."""
    text = json.dumps({"format": STORE_FORMAT, **parts}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoredColumns:
    """Memory-mapped columns of a cache entry."""

    columns: Columns
    report: ReadingReport


def open_columns(folder: Path) -> StoredColumns | None:
    """Open the columns stored at `folder`; None if missing, incomplete or damaged.

    Every column is read once to verify its checksum, so that nobody trains on damaged tokens.
    """
    try:
        meta = read_json_object(folder / "meta.json")
        if meta["format"] != STORE_FORMAT or meta.pop("checksum") != _checksum(meta):
            return None
        columns = {
            name: _map_column(folder, name, column) for name, column in meta["columns"].items()
        }
        return StoredColumns(columns=columns, report=ReadingReport(**meta["report"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Missing, damaged, truncated or another format: in each case it is rebuilt.
        return None


def _checksum(meta: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def _map_column(folder: Path, name: str, metadata: Mapping[str, Any]) -> NDArray[Any]:
    path, dtype, count = folder / f"{name}.bin", np.dtype(metadata["dtype"]), metadata["count"]
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} is not complete")
    if count == 0:
        return np.empty(0, dtype=dtype)
    # As a plain array: slicing numpy's memmap class costs several times as much.
    column = np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(count,)))
    if zlib.crc32(column.data.cast("B")) != metadata["crc32"]:
        raise ValueError(f"{path} is damaged")
    return column


class ColumnWriter:
    """Appends chunks of columns to temporary files and moves them to `place` when complete.

    A kill at any moment leaves `place` unchanged; `clear_leftovers` removes the remains a day
    later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._metadata: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> ColumnWriter:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(self.folder.parent)
            self._folder = Path(tempfile.mkdtemp(prefix="building-", dir=self.folder.parent))
        except OSError as error:
            raise _cannot_write(self.folder.parent, error) from error
        return self

    def append(self, chunk: Columns) -> None:
        """Append values to each column's file."""
        try:
            for name, values in chunk.items():
                if name not in self._files:
                    self._files[name] = (self._folder / f"{name}.bin").open("wb")
                    self._metadata[name] = {"dtype": values.dtype.str, "count": 0, "crc32": 0}
                metadata, content = self._metadata[name], np.ascontiguousarray(values).data
                assert metadata["dtype"] == values.dtype.str, name
                self._files[name].write(content)
                metadata["crc32"] = zlib.crc32(content, metadata["crc32"])
                metadata["count"] += len(values)
        except OSError as error:
            raise _cannot_write(self.folder.parent, error) from error

    def finish(self, report: ReadingReport) -> None:
        """Sync all files to disk, then move them to their final folder."""
        meta = {"format": STORE_FORMAT, "columns": self._metadata, "report": asdict(report)}
        meta["checksum"] = _checksum(meta)
        try:
            for file in self._files.values():
                _sync_and_close(file)
            with (self._folder / "meta.json").open("wb") as file:
                file.write(json.dumps(meta).encode())
                _sync_and_close(file)
            if open_columns(self.folder) is None:  # else another process was faster
                shutil.rmtree(self.folder, ignore_errors=True)
                os.rename(self._folder, self.folder)
        except OSError as error:
            raise _cannot_write(self.folder.parent, error) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            # A full disk was reported already, when the write failed.
            with contextlib.suppress(OSError):
                file.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def clear_leftovers(folder: Path) -> None:
    """Remove the folders of builds that were killed long ago."""
    for build_folder in folder.glob("building-*"):
        try:
            if time.time() - build_folder.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(build_folder, ignore_errors=True)
        except OSError:
            continue


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write the cache of tokenised text in {folder}: {error.strerror or error}; set "
        "LMLAB_CACHE to a folder with room."
    )
