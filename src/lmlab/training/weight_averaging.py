"""Checkpoint averaging: weights saved at the last validations, and their mean."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from lmlab.core.atomic_files import inner_folder, write_bytes
from lmlab.core.errors import UserError
from lmlab.core.manifest import hash_file
from lmlab.core.system import System
from lmlab.core.tensor_files import read_tensors, tensor_bytes
from lmlab.training.run_folder import RunFolder

AVERAGING_PREFIX = "weights-"
"""File name prefix of the weights to be averaged at the end."""


def save_averaging_weights(run: RunFolder, system: System, step: int, *, keep: int) -> None:
    """Save the current weights for averaging, and keep the last `keep`."""
    inner_folder(run.checkpoints_folder, of=run.path)
    content = tensor_bytes(system.state_dict())
    name = f"{AVERAGING_PREFIX}{step:09d}-{hashlib.sha256(content).hexdigest()}.safetensors"
    write_bytes(run.checkpoints_folder / name, content)
    for old in _averaging_files(run)[:-keep]:
        old.unlink(missing_ok=True)


def average_weights(run: RunFolder) -> dict[str, Tensor] | None:
    """The mean of the saved weights (integers: the last), or None where there are none."""
    snapshots = [_read_weights(path) for path in _averaging_files(run)]
    if not snapshots:
        return None
    return {
        name: torch.stack([w[name].double() for w in snapshots]).mean(0).to(last.dtype)
        if last.is_floating_point()
        else last
        for name, last in snapshots[-1].items()
    }


def remove_averaging_weights(run: RunFolder, *, after: int = 0) -> None:
    """Remove the saved weights of steps later than `after`."""
    for path in _averaging_files(run):
        if int(path.stem.removeprefix(AVERAGING_PREFIX).partition("-")[0]) > after:
            path.unlink(missing_ok=True)


def _averaging_files(run: RunFolder) -> list[Path]:
    pattern = f"{AVERAGING_PREFIX}{'[0-9]' * 9}-*.safetensors"
    return sorted(run.checkpoints_folder.glob(pattern))


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read weights saved for averaging; a UserError where the hash in their name differs."""
    if not path.stem.endswith(hash_file(path)):
        raise UserError(f"{path} does not match its checksum; remove it to average the others.")
    return read_tensors(path)
