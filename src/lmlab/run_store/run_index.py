"""The index of runs: a SQLite file in the user's cache that makes a second listing quick.

The folders are the truth. The index is never required: it may be deleted at any time, and one that
is damaged, locked or can't be written to is passed over. A row holds the record of a run, and the
time at which an entry of its folder was last made, renamed or removed (the folder's own time). All
that changes a run's record does that too (atomic writes, locks, tags), so that a folder with the
same time needs no second look. A folder that changed within the last seconds may change again
within one tick of its clock; it is not stored, nor is one with a lock file, which may be running.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from lmlab.core.cache_folder import default_cache
from lmlab.run_store.run_record import RECORD_FIELDS, RunRecord

INDEX_FILE = "runs.sqlite"
INDEX_FORMAT = 1
"""Version of the rows; an index of another one is dropped."""
WAIT_SECONDS = 2.0
"""How long another process may write before its index is passed over."""
SETTLED_SECONDS = 2.0
"""Age of a change from which no other one can have the same time."""
FOLDER_LINE = "\n"


@dataclass(frozen=True, kw_only=True)
class IndexedFolder:
    """A run's folder as it was read."""

    time_ns: int
    """The modification time of the folder."""
    record: RunRecord
    subfolders: tuple[str, ...] = ()
    """Names of folders in it that may hold other runs."""


Indexed = dict[str, IndexedFolder]
"""Folders by their path."""


def is_settled(time_ns: int) -> bool:
    """Whether a later change of the folder would have another time than this one."""
    age = time.time() - time_ns / 1e9
    return age > SETTLED_SECONDS


class RunIndex:
    """The index file; every failure of it is silent, and means that folders are read instead."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = default_cache() / INDEX_FILE if file is None else file

    def load(self, root: Path) -> Indexed:
        """The indexed folders at and below `root`."""
        if not self.file.is_file():
            return {}
        try:
            with closing(self._connect()) as database:
                rows = database.execute(
                    "SELECT path, time_ns, subfolders, record, settings FROM runs"
                    " WHERE path = ? OR (path >= ? AND path < ?)",
                    _range(root),
                ).fetchall()
        except sqlite3.OperationalError:  # locked for too long, or not readable
            return {}
        except sqlite3.DatabaseError:
            self.discard()
            return {}
        collects = gc.isenabled()
        gc.disable()  # all these objects stay: looking for cycles among them is in vain
        try:
            return _parse_rows(rows)
        finally:
            if collects:
                gc.enable()

    def save(self, changed: Mapping[str, IndexedFolder], gone: Iterable[str]) -> None:
        """Store folders, and forget others, in one transaction."""
        rows = [_row(path, folder) for path, folder in changed.items()]
        removed = [(os.fsencode(path),) for path in gone]
        if not rows and not removed:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as database:
                database.execute("BEGIN IMMEDIATE")
                _create_table(database)
                database.executemany("DELETE FROM runs WHERE path = ?", removed)
                database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", rows)
                database.execute("COMMIT")
        except (sqlite3.OperationalError, OSError):  # locked, a full disk, a read-only folder
            return
        except sqlite3.DatabaseError:
            self.discard()

    def discard(self) -> None:
        """Remove the index; the next listing reads every folder."""
        for suffix in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                self.file.with_name(self.file.name + suffix).unlink()

    def _connect(self) -> sqlite3.Connection:
        """A connection that follows no symbolic link to another file."""
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self.file.lstat().st_mode):
                raise sqlite3.OperationalError(f"{self.file} is no regular file")
        return sqlite3.connect(self.file, timeout=WAIT_SECONDS, isolation_level=None)


def _create_table(database: sqlite3.Connection) -> None:
    """Make the table, and drop one of another version."""
    [[version]] = database.execute("PRAGMA user_version").fetchall()
    if version != INDEX_FORMAT:
        database.execute("DROP TABLE IF EXISTS runs")
        database.execute(f"PRAGMA user_version = {INDEX_FORMAT}")
    database.execute(
        "CREATE TABLE IF NOT EXISTS runs (path BLOB PRIMARY KEY, time_ns INTEGER NOT NULL,"
        " subfolders TEXT NOT NULL, record TEXT NOT NULL, settings TEXT NOT NULL) WITHOUT ROWID"
    )


def _range(root: Path) -> tuple[bytes, bytes, bytes]:
    """The path of a folder, and the bounds of the paths below it."""
    path = os.fsencode(root)
    below = path.rstrip(b"/") + b"/"
    return path, below, below[:-1] + b"0"  # the byte after the slash


def _row(path: str, folder: IndexedFolder) -> tuple[bytes, int, str, str, str]:
    record = folder.record
    values = [getattr(record, name) for name in RECORD_FIELDS if name != "path"]
    return (
        os.fsencode(path),
        folder.time_ns,
        FOLDER_LINE.join(folder.subfolders),
        json.dumps(values),
        json.dumps(dict(record.settings), sort_keys=True),
    )


def _parse_rows(rows: list[tuple[bytes, int, str, str, str]]) -> Indexed:
    """The folders of rows; those of another version or damaged are left out."""
    names = [name for name in RECORD_FIELDS if name != "path"]
    parsed: Indexed = {}
    known: dict[str, dict[str, object]] = {}  # runs of a sweep share most of their settings
    for path, time_ns, subfolders, record, settings in rows:
        try:
            if settings not in known:
                known[settings] = json.loads(settings)
            values = dict(zip(names, json.loads(record), strict=True))
            values["settings"] = known[settings]
            name = os.fsdecode(path)
            parsed[name] = IndexedFolder(
                time_ns=time_ns,
                record=RunRecord.from_index(Path(name), values),
                subfolders=tuple(subfolders.split(FOLDER_LINE)) if subfolders else (),
            )
        except (ValueError, TypeError, KeyError):
            continue
    return parsed
