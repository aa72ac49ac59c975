"""Checkpoints: all that training needs to go on as if it had never stopped.

    trainer/step-1200/   model.safetensors  optimizer.safetensors  carried.safetensors  state.json

The folder is written under a temporary name and renamed when it is whole; `state.json` holds the
hash of every other file, so damage is noticed. The one before is kept: if the newest is damaged,
training goes on from there. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.json_text import read_json_object
from lmlab.core.state import State, TensorState
from lmlab.training.files import (
    TEMPORARY,
    read_tensors,
    sync_folder,
    telling_disk_errors,
    write_json,
    write_tensors,
)

KEPT = 2
"""Checkpoints kept: the newest, and the one before in case the newest is damaged."""
PREFIX = "step-"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A moment of a training. Randomness needs no room: each step's depends on its number alone."""

    step: int
    state: dict[str, Any]
    """Everything small, as JSON: place in the data, schedule, early stopping, sums under way."""
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    carried: dict[str, Tensor] = field(default_factory=dict)
    """The system's state at the end of the batch, where text goes on in the next one."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint whole or not at all, then remove those no longer needed."""
    final = folder / f"{PREFIX}{checkpoint.step}"
    temporary = folder / f"{TEMPORARY}{final.name}"
    with telling_disk_errors(final):
        folder.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        temporary.mkdir()
        try:
            _write_parts(temporary, checkpoint)
        except UserError:
            _remove(temporary)  # a full disk is not made fuller
            raise
        _remove(final)  # one of the same step, from a training that was resumed before it
        temporary.rename(final)
        sync_folder(folder)
    _remove_old(folder, newest=checkpoint.step)


def load_checkpoint(folder: Path, tell: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None where there is none.

    A damaged one is passed over, and `tell` is given a sentence about it.
    """
    found = list(_newest_first(folder))
    for place, (step, path) in enumerate(found, 1):
        try:
            return _read(path, step)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            way = "going on from the one before it" if place < len(found) else "starting again"
            tell(f"the checkpoint {path} is damaged ({error}); {way}.")
    return None


def carried_tensors(state: State | None) -> dict[str, Tensor]:
    """A carried state as tensors that a checkpoint can hold."""
    if state is None:
        return {}
    assert isinstance(state, TensorState), "a state carried over batches is a TensorState"
    return dict(state.tensors)


def carried_state(tensors: dict[str, Tensor]) -> State | None:
    """The state that `carried_tensors` took apart."""
    return TensorState(tensors) if tensors else None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's memory as named tensors: 'parameter number.name'."""
    memory = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in memory.items()
        for name, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give an optimiser the memory that `optimizer_tensors` took from it."""
    memory: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, entry = name.partition(".")
        memory.setdefault(int(number), {})[entry] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": memory, "param_groups": groups})


def _write_parts(folder: Path, checkpoint: Checkpoint) -> None:
    parts = {
        "model": checkpoint.model,
        "optimizer": checkpoint.optimizer,
        "carried": checkpoint.carried,
    }
    hashes = {}
    for name, tensors in parts.items():
        path = folder / f"{name}.safetensors"
        write_tensors(path, tensors)
        hashes[path.name] = _hash(path)
    write_json(
        folder / "state.json",
        {"step": checkpoint.step, "files": hashes, "state": checkpoint.state},
    )


def _read(path: Path, step: int) -> Checkpoint:
    document = read_json_object(path / "state.json")
    for name, expected in document["files"].items():
        if _hash(path / name) != expected:
            raise ValueError(f"{name} is not what was written")
    parts = {name: read_tensors(path / f"{name}.safetensors") for name in _PARTS}
    return Checkpoint(step=step, state=document["state"], **parts)


_PARTS = ("model", "optimizer", "carried")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _newest_first(folder: Path) -> Iterator[tuple[int, Path]]:
    found = []
    for path in folder.glob(f"{PREFIX}*"):
        number = path.name.removeprefix(PREFIX)
        if number.isdigit():
            found.append((int(number), path))
    yield from sorted(found, reverse=True)


def _remove_old(folder: Path, newest: int) -> None:
    """Keep the last ones; later steps belong to a training that was resumed before them."""
    kept = [path for step, path in _newest_first(folder) if step <= newest][:KEPT]
    for path in folder.iterdir():
        if path not in kept and path.name.startswith((PREFIX, TEMPORARY)):
            _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
