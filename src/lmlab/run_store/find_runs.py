"""Finding all runs below a folder, with the index where it still holds."""

from __future__ import annotations

import os
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.core.locks import LOCK_FILE
from lmlab.run_store.read_run import read_run
from lmlab.run_store.run_index import Indexed, IndexedFolder, RunIndex, is_settled
from lmlab.run_store.run_record import RunRecord

PARTS_OF_A_RUN = frozenset({"trainer", "figures", "memory", "tensorboard", "wandb"})
"""Folders of a run that hold no other one."""


def find_runs(folder: Path, *, index: RunIndex | None = None) -> list[RunRecord]:
    """The runs at and below a folder; symbolic links and hidden folders are not followed."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the one that holds your runs.")
    index = RunIndex() if index is None else index
    root = folder.resolve()
    search = _Search(index.load(root))
    search.visit(root)
    index.save(search.changed, search.indexed.keys() - search.seen)
    return search.records


class _Search:
    """A walk over folders, each of which is looked up in the index first."""

    def __init__(self, indexed: Indexed) -> None:
        self.indexed = indexed
        self.records: list[RunRecord] = []
        self.changed: Indexed = {}
        """Folders to store, read anew."""
        self.seen: set[str] = set()
        """Indexed folders that still hold runs."""

    def visit(self, root: Path) -> None:
        """Collect the runs at and below a folder."""
        waiting = [str(root)]
        while waiting:
            path = waiting.pop()
            try:
                time_ns = os.stat(path, follow_symlinks=False).st_mtime_ns
            except OSError:
                continue  # removed in the meantime
            known = self.indexed.get(path)
            if known is not None and known.time_ns == time_ns:
                self.seen.add(path)
                self.records.append(known.record)
                names = known.subfolders
            else:
                names = self._read(path, time_ns)
            waiting += [f"{path.rstrip('/')}/{name}" for name in reversed(names)]

    def _read(self, path: str, time_ns: int) -> tuple[str, ...]:
        """Read a folder, which may hold a run, and return the names of those in it."""
        names, has_config = _subfolders(path)
        record = read_run(Path(path)) if has_config else None
        if record is None:
            return names
        names = tuple(name for name in names if name not in PARTS_OF_A_RUN)
        self.records.append(record)
        locked = os.path.lexists(f"{path}/{LOCK_FILE}")  # its holder may change what it likes
        if not locked and is_settled(time_ns):
            self.changed[path] = IndexedFolder(time_ns=time_ns, record=record, subfolders=names)
            self.seen.add(path)
        return names


def _subfolders(path: str) -> tuple[tuple[str, ...], bool]:
    """The names of the folders in a folder, and whether it has a config.json."""
    names, has_config = [], False
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name == "config.json":
                    has_config = True
                elif entry.name[0] != "." and entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
    except OSError:  # no permission, or removed in the meantime
        return (), False
    return tuple(sorted(names)), has_config
