"""Atomic file and folder writes (temporary name, fsync, rename); disk errors, leftovers, symlinks.

A file or folder is written under a temporary name in the folder it belongs to, forced to the disk,
and only then renamed. A rename is atomic, so a reader finds the old content or the new one, never a
part. Temporary names are random and created with O_EXCL | O_NOFOLLOW, and a rename replaces a
symbolic link at the final name: nothing is written through a link. What a killed process has left
under a temporary name is removed by the next write into the same folder; a kernel lock on it tells
whether its process is still alive.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from lmlab.core.errors import UserError
from lmlab.core.locks import UNSUPPORTED_ERRORS, lock_descriptor, lock_folder

TEMPORARY = ".writing-"
"""Prefix of the names of unfinished files and folders."""
_TEMPORARY_NAME = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}")
ABANDONED_SECONDS = 24 * 3600
"""Age at which a temporary file counts as abandoned, on file systems without locks."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | getattr(os, "O_BINARY", 0)
_RESUMES: ContextVar[bool] = ContextVar("resumes", default=False)


@contextmanager
def advising_resume() -> Iterator[None]:
    """Context of a command that can be continued with --resume: disk errors then advise it."""
    token = _RESUMES.set(True)
    try:
        yield
    finally:
        _RESUMES.reset(token)


@contextmanager
def telling_disk_errors(path: Path) -> Iterator[None]:
    """Turn a disk error into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> UserError:
    """The error for a failed write to `path`."""
    path = _final_path(path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "go on with --resume from the last checkpoint" if _RESUMES.get() else "try again"
        return UserError(
            f"the disk is full, so {path} could not be written; free some space and {advice}."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"{path} can't be written to; choose a folder you may write to.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return UserError(f"{path} can't be a folder, because a file is in its way; choose another.")
    if error.errno == errno.EISDIR:
        return UserError(f"{path} is a folder; give the name of a file to write.")
    if error.errno == errno.ELOOP:
        return UserError(
            f"{path} is a symbolic link, which lmlab does not write through; remove it."
        )
    if error.errno == errno.ENOENT:
        return UserError(f"there is no folder {path.parent} to write {path.name} to; create it.")
    reason = error.strerror or error
    return UserError(f"{path} could not be written ({reason}); check the disk and try again.")


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which becomes `path` if the block ends without an error; else it is removed.

    Whatever was at `path` is replaced; of a symbolic link the link, not its target. In a temporary
    folder it is written in place: that folder is synced to disk as a whole.
    """
    if _final_path(path) != path:
        with telling_disk_errors(path):
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, _NEW_FILE_FLAGS, 0o666), "wb") as file:
                yield file
        return
    with telling_disk_errors(path):
        remove_leftovers(path.parent)
        temporary, descriptor = _new_temporary(path.parent, folder=False)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if os.name != "nt":  # while its lock is held
                    os.replace(temporary, path)
            if os.name == "nt":  # which renames no open file
                os.replace(temporary, path)
        except BaseException:
            remove(temporary)  # a full disk is not made fuller
            raise
        sync(path.parent)


@contextmanager
def new_named_file(path: Path) -> Iterator[Path]:
    """The same for libraries that open a file by its name, such as FAISS.

    The name is in a folder of its own that only this user may enter.
    """
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        with _temporary_folder(path.parent, becomes=path.parent, mode=0o700) as folder:
            yield folder / path.name
            sync(folder / path.name)
            os.replace(folder / path.name, path)
        sync(path.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `folder` when the block ends without an error.

    `folder` must be absent or empty. No other process can write the same folder in the meantime.
    """
    with telling_disk_errors(folder):
        lock = lock_folder(folder, adjacent=True)
    with lock:
        if folder.is_symlink() or (
            folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        ):
            raise UserError(f"{folder} already exists and is not empty; choose another.")
        with telling_disk_errors(folder):
            remove_leftovers(folder.parent)
            with _temporary_folder(folder.parent, becomes=folder) as partial:
                yield partial
                move_folder(partial, folder)


@contextmanager
def _temporary_folder(parent: Path, *, becomes: Path, mode: int = 0o777) -> Iterator[Path]:
    temporary, descriptor = _new_temporary(parent, folder=True, mode=mode)
    _final_names[temporary] = becomes
    try:
        yield temporary
    finally:
        del _final_names[temporary]
        try:
            remove(temporary)  # does nothing if it has been renamed
        finally:
            if descriptor >= 0:
                os.close(descriptor)


_final_names: dict[Path, Path] = {}
"""Temporary folders of this process, and the names that they will have."""


def _final_path(path: Path) -> Path:
    """A path with the name that its temporary folder will have, for messages."""
    for temporary, final in _final_names.items():
        if path.is_relative_to(temporary):
            return final / path.relative_to(temporary)
    return path


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` when the block ends; see `new_folder`.

    The caller holds the lock of the parent.
    """
    with telling_disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        with _temporary_folder(folder.parent, becomes=folder) as partial:
            yield partial
            discard(folder)
            move_folder(partial, folder)


def move_folder(partial: Path, folder: Path) -> None:
    """Force all that is in a folder to the disk, and give it its final name."""
    for path in sorted(partial.rglob("*")):
        sync(path)
    sync(partial)
    if folder.is_dir():
        folder.rmdir()
    os.rename(partial, folder)
    sync(folder.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with new_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document atomically."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """A JSON document as it is written to files."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def no_follow(path: str, flags: int) -> int:
    """An opener for `open` that follows no symbolic link: `path.open("a", opener=no_follow)`."""
    return os.open(path, flags | NO_FOLLOW, 0o666)


def inner_folder(folder: Path, *, of: Path) -> Path:
    """Create a folder below another one; raises a UserError if a symbolic link leads out of it."""
    with telling_disk_errors(folder):
        check_inside(folder, of)
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_writable(folder: Path) -> None:
    """Raise a UserError if nothing can be written into a folder, which need not exist yet."""
    existing = next(
        candidate for candidate in (folder, *folder.absolute().parents) if candidate.exists()
    )
    with telling_disk_errors(folder):
        temporary, descriptor = _new_temporary(existing, folder=False)
        remove(temporary)
        os.close(descriptor)


def check_inside(folder: Path, of: Path) -> None:
    """Raise a UserError if a folder below another one is a symbolic link that leads out of it."""
    if not folder.resolve().is_relative_to(of.resolve()):
        raise UserError(
            f"{folder} is a symbolic link to {folder.resolve()}, outside of {of}; lmlab does not "
            "write through it, so remove it."
        )


def remove(path: Path) -> None:
    """Remove a file, a symbolic link or a whole folder; failures are ignored."""
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Remove a folder so that a kill leaves it whole or under a temporary name, never in part."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    with suppress(OSError):
        os.rename(path, temporary)
    remove(temporary)


def sync(path: Path) -> None:
    """Sync a file or the names in a folder to disk, if the system can."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _new_temporary(parent: Path, *, folder: bool, mode: int = 0o777) -> tuple[Path, int]:
    """A new file or folder with a random name, and a descriptor that holds its lock.

    The descriptor of a folder is -1 on Windows, which opens none.
    """
    while True:
        path = parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            if folder:
                os.mkdir(path, mode)
                if os.name == "nt":
                    return path, -1
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW)
            else:
                descriptor = os.open(path, _NEW_FILE_FLAGS, 0o666)
        except FileExistsError:
            if path.exists() or path.is_symlink():
                continue
            raise
        if _lock(descriptor) and _is_at(descriptor, path):
            return path, descriptor
        os.close(descriptor)  # taken for left over by another process, which removes it


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes have left in a folder under temporary names."""
    try:
        entries = [entry for entry in os.scandir(folder) if _TEMPORARY_NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        if not entry.is_symlink():
            _remove_leftover(Path(entry.path))


def _remove_leftover(path: Path) -> None:
    flags = os.O_RDONLY | NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
    try:
        abandoned = time.time() - path.lstat().st_mtime > ABANDONED_SECONDS
        if os.name == "nt":
            if abandoned:
                remove(path)
            return
        descriptor = os.open(path, flags)
    except OSError:
        return
    try:
        mode = os.fstat(descriptor).st_mode
        if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and _lock(descriptor, unsupported=abandoned):
            remove(path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, unsupported: bool = True) -> bool:
    """Lock a file or folder; `unsupported` is the result if the file system has no locks."""
    if os.name == "nt":
        return True
    try:
        lock_descriptor(descriptor)
    except OSError as error:
        return unsupported and error.errno in (*UNSUPPORTED_ERRORS, errno.EBADF, errno.EINVAL)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
