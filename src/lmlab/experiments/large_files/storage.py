"""Files by path or fsspec URL: read by ranges, written atomically, listed and removed.

Paths and `file://` URLs use the local file system with its locks and syncs; others (`s3://`,
`memory://`) go through fsspec, which comes with torch, and the package of their file system.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lmlab.core.atomic_files import TEMPORARY, discard, new_file, telling_disk_errors
from lmlab.core.errors import UserError

LOCAL_SCHEME = "file://"


@dataclass(frozen=True, kw_only=True)
class FileState:
    """What tells, without reading it, that a file has probably not changed."""

    size: int
    modified: str | None
    """Time or entity tag; None where the file system has neither."""


def local_path(location: str) -> Path | None:
    """The path of a local file or folder; None for a URL of another file system."""
    if location.startswith(LOCAL_SCHEME):
        return Path(location.removeprefix(LOCAL_SCHEME))
    return None if "://" in location else Path(location)


def absolute(location: str) -> str:
    """A location that means the same in another process."""
    path = local_path(location)
    return location if path is None else str(path.absolute())


def check_shared(location: str, *, alone: bool) -> None:
    """A UserError for a file system that other processes do not see, unless this one is `alone`."""
    if not alone and location.startswith("memory://"):
        raise UserError(f"{location} is in the memory of this process alone; use --jobs 1.")


def file_state(location: str) -> FileState:
    """Size and time of a file; a UserError if there is none."""
    path = local_path(location)
    if path is None:
        system, name = _remote(location)
        with _telling_remote_errors(location):
            about = system.info(name)
        times = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
        modified = next((str(about[key]) for key in times if about.get(key)), None)
        return FileState(size=int(about["size"]), modified=modified)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file with a text a line.")
    try:
        state = path.stat()
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot read {path}: {reason}; check the path.") from None
    return FileState(size=state.st_size, modified=str(state.st_mtime_ns))


def open_file(location: str) -> IO[bytes]:
    """A file to read, which can seek."""
    path = local_path(location)
    if path is not None:
        try:
            return path.open("rb")
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}.") from None
    system, name = _remote(location)
    with _telling_remote_errors(location):
        return _as_file(system.open(name, "rb"))


def read_bytes(location: str) -> bytes:
    """The content of a small file."""
    with open_file(location) as file:
        return file.read()


@contextmanager
def written_file(location: str) -> Iterator[IO[bytes]]:
    """A file to write, which is at its place when the block ends without an error, else nowhere."""
    path = local_path(location)
    if path is not None:
        with new_file(path) as file:
            yield file
        return
    system, name = _remote(location)
    folder, _, last = name.rpartition("/")
    temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(8)}-{last}"
    with _telling_remote_errors(location):
        try:
            with system.open(temporary, "wb") as remote:
                yield _as_file(remote)
            system.mv(temporary, name)
        except BaseException:
            with suppress(Exception):
                system.rm(temporary)
            raise


def exists(location: str) -> bool:
    """Whether there is a file or folder."""
    path = local_path(location)
    if path is not None:
        return path.exists()
    system, name = _remote(location)
    with _telling_remote_errors(location):
        return bool(system.exists(name))


def names_in(folder: str) -> set[str]:
    """The names in a folder; none if there is no folder."""
    path = local_path(folder)
    if path is not None:
        return {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    system, name = _remote(folder)
    with _telling_remote_errors(folder):
        system.invalidate_cache()
        listed = system.ls(name, detail=False) if system.exists(name) else []
    return {entry.rstrip("/").rpartition("/")[2] for entry in listed}


def make_folder(folder: str) -> None:
    """Create a folder, whose parent must exist."""
    path = local_path(folder)
    if path is not None:
        with telling_disk_errors(path):
            path.mkdir(exist_ok=True)
        return
    system, name = _remote(folder)
    with _telling_remote_errors(folder):
        system.makedirs(name, exist_ok=True)


def remove_folder(folder: str) -> None:
    """Remove a folder and all that is in it."""
    path = local_path(folder)
    if path is not None:
        discard(path)
        return
    system, name = _remote(folder)
    with _telling_remote_errors(folder):
        system.rm(name, recursive=True)


def copy_file(source: IO[bytes], target: IO[bytes]) -> None:
    """Append the rest of a file to another, in constant memory."""
    shutil.copyfileobj(source, target, 1 << 20)


def _remote(location: str) -> tuple[Any, str]:
    """The file system of a URL, and the name in it."""
    from fsspec.core import url_to_fs

    try:
        system, name = url_to_fs(location)
    except ImportError as error:
        raise UserError(f"{location} can't be opened: {error}.") from None
    except ValueError as error:
        raise UserError(f"{location} can't be opened: {error}; check the URL.") from None
    return system, str(name)


@contextmanager
def _telling_remote_errors(location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise UserError(f"{location} could not be read or written: {reason}.") from None


def _as_file(remote: Any) -> IO[bytes]:
    file: IO[bytes] = remote
    return file
