"""Columns of numbers in memory-mapped files, written whole or not at all."""

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
from lmlab.core.json_text import read_json_object
from lmlab.data.lines import ReadingReport

STORE_FORMAT = 2
"""Version of the files; another version is not read but built again."""
LEFTOVER_SECONDS = 24 * 3600.0
"""Seconds after which a folder still being built is taken for the remains of a kill."""

Columns = dict[str, NDArray[Any]]


def default_cache() -> Path:
    """LMLAB_CACHE, or `lmlab` in the user's cache folder."""
    given = os.environ.get("LMLAB_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lmlab"


def cache_key(**parts: object) -> str:
    """Name of the folder for content of this identity."""
    text = json.dumps({"format": STORE_FORMAT, **parts}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoredColumns:
    """Columns as they were written, mapped and not read."""

    columns: Columns
    report: ReadingReport


def open_columns(place: Path) -> StoredColumns | None:
    """What was written at `place`; None if nothing was, or not all of it is there as it was.

    Every column is read once to compare its checksum: training on damaged tokens is worse.
    """
    try:
        meta = read_json_object(place / "meta.json")
        if meta["format"] != STORE_FORMAT or meta.pop("checksum") != _checksum(meta):
            return None
        columns = {name: _map(place, name, about) for name, about in meta["columns"].items()}
        return StoredColumns(columns=columns, report=ReadingReport(**meta["report"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Missing, damaged, cut short or not ours: in each case it is built again.
        return None


def _checksum(meta: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def _map(place: Path, name: str, about: Mapping[str, Any]) -> NDArray[Any]:
    path, dtype, count = place / f"{name}.bin", np.dtype(about["dtype"]), about["count"]
    if path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} is not complete")
    if count == 0:
        return np.empty(0, dtype=dtype)
    # As a plain array: slices of numpy's memmap class cost several times as much.
    column = np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(count,)))
    if zlib.crc32(column.data.cast("B")) != about["crc32"]:
        raise ValueError(f"{path} is damaged")
    return column


class ColumnWriter:
    """Appends chunks of columns to files beside `place`, and moves them there when all is done.

    A kill at any moment leaves at `place` what was there before; the remains are removed a day
    later by `clear_leftovers`.
    """

    def __init__(self, place: Path) -> None:
        self.folder = place
        self._files: dict[str, BinaryIO] = {}
        self._about: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> ColumnWriter:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(self.folder.parent)
            self._folder = Path(tempfile.mkdtemp(prefix="building-", dir=self.folder.parent))
        except OSError as error:
            raise _cannot_write(self.folder.parent, error) from error
        return self

    def append(self, chunk: Columns) -> None:
        """Add the values of each column to its file."""
        try:
            for name, values in chunk.items():
                if name not in self._files:
                    self._files[name] = (self._folder / f"{name}.bin").open("wb")
                    self._about[name] = {"dtype": values.dtype.str, "count": 0, "crc32": 0}
                about, content = self._about[name], np.ascontiguousarray(values).data
                assert about["dtype"] == values.dtype.str, name
                self._files[name].write(content)
                about["crc32"] = zlib.crc32(content, about["crc32"])
                about["count"] += len(values)
        except OSError as error:
            raise _cannot_write(self.folder.parent, error) from error

    def finish(self, report: ReadingReport) -> None:
        """Make sure that all is on the disk, then put it in its place."""
        meta = {"format": STORE_FORMAT, "columns": self._about, "report": asdict(report)}
        meta["checksum"] = _checksum(meta)
        try:
            for file in self._files.values():
                _sync_and_close(file)
            with (self._folder / "meta.json").open("wb") as file:
                file.write(json.dumps(meta).encode())
                _sync_and_close(file)
            if open_columns(self.folder) is None:  # else another process was quicker
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
            # A full disk was told already, when the write failed.
            with contextlib.suppress(OSError):
                file.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _sync_and_close(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def clear_leftovers(folder: Path) -> None:
    """Remove folders of builds that were killed long ago."""
    for building in folder.glob("building-*"):
        try:
            if time.time() - building.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(building, ignore_errors=True)
        except OSError:
            continue


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write the cache of tokenised text in {folder}: {error.strerror or error}; set "
        "LMLAB_CACHE to a folder with room."
    )
