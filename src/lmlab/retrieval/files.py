"""Files and folders that appear whole or not at all, whatever stops their writing.

What is written stands under another name until it is all on the disk, and is renamed then.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder

UNFINISHED = ".writing-"
"""How names of unfinished files and folders begin; whatever bears one may be deleted."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes `path` when all went well; else it is gone."""
    partial = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    with _telling(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            _to_disk(partial)
            partial.replace(path)
            _to_disk(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which becomes `folder` when all went well; else it is gone.

    No other process can write the same folder in the meantime.
    """
    with _telling(folder):
        lock = lock_folder(folder, beside=True)
    with lock, _folder_under_other_name(folder) as partial:
        yield partial


@contextmanager
def _folder_under_other_name(folder: Path) -> Iterator[Path]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty; choose another.")
    partial = folder.with_name(f"{UNFINISHED}{os.getpid()}-{folder.name}")
    with _telling(folder):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            for each in sorted(partial.rglob("*")):
                _to_disk(each)
            if folder.exists():
                folder.rmdir()
            partial.replace(folder)
            _to_disk(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """An error of the disk in one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = "the disk is full; free some space and try again"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            what = "choose a place that you may write to"
        else:
            what = f"{error.strerror or error}; check the disk and try again"
        raise UserError(f"{path} could not be written: {what}.") from error


def _to_disk(path: Path) -> None:
    """Force what was written to the disk, where the system can."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
