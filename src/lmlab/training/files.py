"""Writing that a kill, a full disk or a power cut can't leave half done.

Everything is written under another name, forced to the disk, and only then renamed; a rename is
atomic, so a reader finds the old file or the new one, never a part.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.json_text import parse_json

TEMPORARY = ".writing-"
"""How names of unfinished files begin; whatever bears one may be deleted."""


@contextmanager
def telling_disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> UserError:
    """The sentence for a write to `path` that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"the disk is full, so {path} could not be written; free some space and go on with "
            "--resume from the last checkpoint."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"{path} can't be written to; choose a folder you may write to.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return UserError(f"{path} can't be a folder, because a file is in its way; choose another.")
    reason = error.strerror or error
    return UserError(f"{path} could not be written ({reason}); check the disk and try again.")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with telling_disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)  # a full disk is not made fuller
            raise
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors atomically as safetensors; those that share memory are written once."""
    unique, aliases = _without_shared(tensors)
    # As bytes in memory, because the library's own writer hides the disk's errors in a text.
    write_bytes(path, save(unique, metadata={"aliases": json.dumps(aliases)}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file that `write_tensors` wrote, shared ones under each of their names."""
    with safe_open(path, framework="pt") as file:
        aliases = parse_json((file.metadata() or {}).get("aliases", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if not isinstance(aliases, dict) or not all(
        isinstance(kept, str) and kept in tensors for kept in aliases.values()
    ):
        raise ValueError("its header names tensors that are not in the file")
    return tensors | {name: tensors[kept] for name, kept in aliases.items()}


def _without_shared(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of different memory, and the other names of those with several (tied weights)."""
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name in sorted(tensors):
        value = tensors[name].detach()
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and key in seen:
            aliases[name] = seen[key]
            continue
        seen[key] = name
        # Cloned where it is a part of larger memory, which the format can't write.
        whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
        unique[name] = (value if whole else value.contiguous().clone()).to("cpu")
    return unique, aliases


def sync_folder(path: Path) -> None:
    """Force a folder's names to the disk, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
