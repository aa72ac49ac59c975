"""Removing runs: only runs, only inside of one folder, never through a symbolic link."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmlab.core.atomic_files import discard, telling_disk_errors
from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder
from lmlab.run_store.find_runs import find_runs
from lmlab.run_store.read_run import disk_usage, is_run
from lmlab.run_store.run_index import RunIndex


@dataclass(frozen=True, kw_only=True)
class RemovableRun:
    """A run that may be removed."""

    path: Path
    disk: int
    """Bytes of its files."""


def removable_runs(
    paths: Sequence[str | Path], folder: Path, index: RunIndex | None = None
) -> list[RemovableRun]:
    """The runs at these paths; a UserError for the first that must not be removed."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the one that holds your runs.")
    root = folder.resolve()
    resolved = [_checked_path(Path(path), folder, root) for path in paths]
    for path in resolved:
        inner = [run.path for run in find_runs(path, index=index) if run.path != path]
        if others := [str(other) for other in inner if other not in resolved]:
            raise UserError(
                f"{path} has another run in it, {others[0]}; name that as well, or move it away."
            )
    return [RemovableRun(path=path, disk=disk_usage(path)) for path in dict.fromkeys(resolved)]


def _checked_path(path: Path, folder: Path, root: Path) -> Path:
    """The real path of a run below `root`."""
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, which is not followed; name the run itself.")
    if not os.path.lexists(path):
        raise UserError(f"there is no run at {path}; check the path.")
    real = path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()
    if not is_run(real):
        raise UserError(f"{path} is not a run, so it is not removed.")
    if real == root or not real.is_relative_to(root):
        raise UserError(f"{path} is not inside of {folder}; give its folder by --folder.")
    return real


def remove_runs(runs: Sequence[RemovableRun]) -> None:
    """Remove runs; a UserError for one that is being written, before any of them is removed.

    A kill leaves a run whole, or under a temporary name, which the next write beside it removes.
    """
    locks = []
    try:
        for run in sorted(runs, key=lambda run: len(run.path.parts), reverse=True):
            with telling_disk_errors(run.path):
                locks.append(lock_folder(run.path))
        for run in sorted(runs, key=lambda run: len(run.path.parts), reverse=True):
            with telling_disk_errors(run.path):
                discard(run.path)
            if os.path.lexists(run.path):
                raise UserError(f"{run.path} can't be removed; check that you may write there.")
    finally:
        for lock in locks:
            lock.release()
