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

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lmlab.core.errors import UserError

TEMPORARY = ".writing-"
"""How names of unfinished files begin; whatever bears one may be deleted."""


@contextmanager
def telling_disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error
    except SafetensorError as error:  # its writer hides the OSError in a text
        raise disk_error(path, error) from error


def disk_error(path: Path, error: Exception) -> UserError:
    """The sentence for a write to `path` that failed."""
    number = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in text:
        return UserError(
            f"the disk is full, so {path} could not be written; free some space and go on with "
            "--resume from the last checkpoint."
        )
    if (
        number in (errno.EACCES, errno.EPERM, errno.EROFS)
        or "denied" in text
        or "Read-only" in text
    ):
        return UserError(f"{path} can't be written to; choose a folder you may write to.")
    if number in (errno.ENOTDIR, errno.EEXIST):
        return UserError(f"{path} can't be a folder, because a file is in its way; choose another.")
    return UserError(f"{path} could not be written ({text}); check the disk and try again.")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=True) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with telling_disk_errors(path):
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors atomically as safetensors; those that share memory are written once."""
    with telling_disk_errors(path):
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        unique, aliases = _without_shared(tensors)
        save_file(unique, temporary, metadata={"aliases": json.dumps(aliases)})
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file that `write_tensors` wrote, shared ones under each of their names."""
    with safe_open(path, framework="pt") as file:
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
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


def sync_file(path: Path) -> None:
    """Force a file's content to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Force a folder's names to the disk, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def scalar(value: float | int) -> Tensor:
    """A number as a tensor of one double, for files that hold only tensors."""
    return torch.tensor(value, dtype=torch.float64)
