"""Folder locks (flock): one process at a time writes a folder; stale ones are taken over.

The lock is the kernel's (`flock`, on Windows `msvcrt.locking`) on a small file, so it ends with the
process that holds it however that ends: the file of a killed process is stale and is taken over.
Limits: on NFS the server must support locks (NFSv4 does; a mount with `nolock` excludes only the
processes of one machine). Where a file system has no locks at all, a warning says so.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lmlab.core.errors import LmlabWarning, UserError

LOCK_FILE = ".lmlab-lock"
"""The lock file of a folder, in it or next to it (with the folder's name appended)."""
POLL_SECONDS = 0.1
PROBE_SECONDS = 0.2
"""How long a lock is tried at least: `held_lock` may hold it for a moment."""
HELD_ERRORS = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
"""Errors of `flock` and `msvcrt.locking` if another process holds the lock."""
UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class FolderLock:
    """An exclusive lock on a folder, held until `release`; a context manager that releases it."""

    def __init__(self, path: Path, descriptor: int | None, created: list[Path]) -> None:
        """`path` is the lock file, `created` the folders made for it, the innermost first."""
        self._path = path
        self._descriptor = descriptor
        self._created = created
        self._owner = os.getpid()
        if descriptor is not None:
            _held.add(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Remove the lock file, and the folders made for it if nothing was written into them."""
        if self._owner != os.getpid():
            return  # a forked child, whose copy of the descriptor is closed already
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            if os.name == "nt":
                os.close(self._descriptor)  # Windows removes no file that is open
            # Removed while it is held, so that nobody loses a lock just taken.
            # A stale file that can't be removed is taken over by the next process.
            # One that is gone with its folder may be another process's by now.
            with suppress(OSError):
                if os.name == "nt" or _is_current(self._descriptor, self._path):
                    self._path.unlink()
            if os.name != "nt":
                os.close(self._descriptor)
            self._descriptor = None
        for folder in self._created:
            try:
                folder.rmdir()
            except OSError:
                break  # there is something in it


def lock_folder(folder: Path, *, adjacent: bool = False, wait: float = 0.0) -> FolderLock:
    """Take the lock of a folder; a UserError if another process holds it for `wait` seconds.

    The folder is created if missing. `adjacent` puts the lock file next to the folder, for folders
    that are written under another name and must be empty or absent until then.
    """
    parent = folder.parent if adjacent else folder
    path = parent / (f"{LOCK_FILE}-{folder.name}" if adjacent else LOCK_FILE)
    deadline = time.monotonic() + max(wait, PROBE_SECONDS)
    while True:
        created = _create_folder(parent)
        try:
            return FolderLock(path, _acquire(path), created)
        except FileNotFoundError:
            continue  # another process has just removed the folder that it had made for its lock
        except _HeldError:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"{folder} is being written by another lmlab process{_holder(path)}; wait "
                    "until it ends, or choose another folder."
                ) from None
        except BaseException:
            FolderLock(path, None, created).release()
            raise
        time.sleep(POLL_SECONDS)


def is_locked(folder: Path) -> bool:
    """Whether a live process holds the lock in this folder."""
    path = folder / LOCK_FILE
    if not path.exists():
        return False
    try:
        descriptor = _acquire(path)
    except _HeldError:
        return True
    FolderLock(path, descriptor, []).release()
    return False


def held_lock(folder: Path) -> bool | None:
    """Whether a process holds the lock in this folder, without writing; None if locks do not tell.

    They do not where the file system has none, and not of the processes of another machine that
    shares the folder but not its locks (`nolock`).
    """
    path = folder / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        _probe(descriptor)
    except OSError as error:
        return True if error.errno in HELD_ERRORS else None
    finally:
        os.close(descriptor)
    return None if _names_another_host(path) else False


def _names_another_host(path: Path) -> bool:
    """Whether a lock file was written by a process of another machine."""
    words = _lock_words(path)
    return len(words) == 2 and words[1] != socket.gethostname()


class _HeldError(Exception):
    """Another process holds the lock."""


def _acquire(path: Path) -> int | None:
    """The descriptor of the locked file; None if the file system has no locks."""
    while True:
        descriptor = _open(path)
        try:
            lock_descriptor(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in UNSUPPORTED_ERRORS:
                _warn_unsupported(path)
                return None
            if error.errno in HELD_ERRORS:
                raise _HeldError from error
            raise
        if _is_current(descriptor, path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f" {os.getpid()} {socket.gethostname()}\n".encode())
            return descriptor
        os.close(descriptor)  # its holder removed it in between: lock the file that is there now


def _open(path: Path) -> int:
    """Open the lock file; a symbolic link in its place is removed, not followed."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP or not path.is_symlink():
                raise
        path.unlink(missing_ok=True)


if os.name == "nt":
    import msvcrt

    def lock_descriptor(descriptor: int) -> None:
        """Lock the first byte, a space, so that others can still read who holds it."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]

    def _probe(descriptor: int) -> None:
        """Raise an OSError if another process holds the lock."""
        lock_descriptor(descriptor)
else:
    import fcntl

    def lock_descriptor(descriptor: int) -> None:
        """Lock an open file or folder; raises an OSError if another process holds its lock."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _probe(descriptor: int) -> None:
        """Raise an OSError if another process holds the lock; taken shared, and only for a moment.

        `lock_folder` waits that moment, so that a listing never makes a training fail.
        """
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _is_current(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """The process that holds a lock, as its file reports it: ` (process 12 on host)`."""
    words = _lock_words(path)
    if len(words) != 2:
        return ""
    process, host = words
    return f" (process {process})" if host == socket.gethostname() else f" ({process} on {host})"


def _lock_words(path: Path) -> list[str]:
    """The process and the host that a lock file names."""
    try:
        with path.open("rb") as file:
            file.seek(1)
            return file.read(300).decode(errors="replace").split()
    except OSError:
        return []


def _warn_unsupported(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
    warnings.warn(
        f"the file system of {path.parent} has no locks; make sure that no other process writes "
        "the same folder.",
        LmlabWarning,
        stacklevel=3,
    )


def _create_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents; the new ones, the innermost first."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return missing
        except FileExistsError:
            # Unless a file has its name, another process removed the folder since mkdir met it.
            if folder.exists() and not folder.is_dir():
                raise


_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _close_in_child() -> None:
    """A forked child shares its parent's locks, which would outlive the parent with it."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
