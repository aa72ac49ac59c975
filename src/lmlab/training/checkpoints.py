"""Checkpoints: model, optimiser and recurrent state, saved atomically, resumed bit-exactly.

    trainer/step-1200/   model.safetensors  optimizer.safetensors  recurrent_state.safetensors
                         state.json  manifest.json

The folder is written under a temporary name and renamed when complete; its manifest lists the hash
of every file, so damage is detected. The previous one is kept: if the newest is damaged, training
resumes from there. Checkpoints are always verified. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from lmlab.core.atomic_files import advising_resume, discard, replaced_folder, write_json
from lmlab.core.errors import UserError
from lmlab.core.manifest import check_files, write_manifest
from lmlab.core.state import State, TensorState
from lmlab.core.tensor_files import read_tensors, write_tensors
from lmlab.core.untrusted_input import read_json_object
from lmlab.training.sharding import shard_like


@contextmanager
def restoring(trainer: Path) -> Iterator[None]:
    """A UserError where an intact checkpoint does not match the resumed training."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UserError(
            f"the checkpoint in {trainer} does not fit this training "
            f"({' '.join(str(reason).split())[:200]}); remove that folder to start again."
        ) from error


def checked_numbers(state: Any, expected: Mapping[str, float]) -> dict[str, Any]:
    """The numbers of a checkpoint; a ValueError unless they have these names and types.

    An integer must be non-negative; a float may be infinite, not NaN.
    """
    if not isinstance(state, dict) or set(state) != set(expected):
        raise ValueError(f"expected numbers named {', '.join(expected)}")
    for name, value in state.items():
        is_integer = isinstance(expected[name], int)
        valid = isinstance(value, int) if is_integer else isinstance(value, (int, float))
        if not valid or isinstance(value, bool) or math.isnan(value) or (is_integer and value < 0):
            kind = "a whole number, 0 or more" if is_integer else "a number"
            raise ValueError(f"{name} must be {kind}, got {str(value)[:40]!r}")
    return dict(state)


MAX_CHECKPOINTS = 2
"""Checkpoints kept: the newest, and the previous one in case the newest is damaged."""
CHECKPOINT_PREFIX = "step-"
STATE = "state.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """Training state at one step, without random state: each step's depends on its number alone."""

    step: int
    state: dict[str, Any]
    """Everything small, as JSON: data position, schedule, early stopping, running sums."""
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    recurrent_state: dict[str, Tensor] = field(default_factory=dict)
    """The recurrent state after the batch, where text continues in the next one."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically, then remove those no longer needed."""
    final = folder / f"{CHECKPOINT_PREFIX}{checkpoint.step}"
    # One of the same step exists where a training was resumed before it.
    with advising_resume(), replaced_folder(final) as partial:
        _write_parts(partial, checkpoint)
    _remove_old(folder, newest=checkpoint.step)


def load_checkpoint(folder: Path, report: Callable[[str], None] = print) -> Checkpoint | None:
    """Load the newest intact checkpoint, or None where there is none.

    A damaged one is skipped, and `report` is called with a sentence about it.
    """
    candidates = list(_newest_first(folder))
    for rank, (step, path) in enumerate(candidates, 1):
        try:
            return _read(path, step)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            last = rank == len(candidates)
            action = "starting again" if last else "resuming from the previous one"
            report(f"the checkpoint {path} is damaged ({error}); {action}.")
    return None


def state_to_tensors(state: State | None) -> dict[str, Tensor]:
    """Convert a carried state to tensors for a checkpoint."""
    if state is None:
        return {}
    assert isinstance(state, TensorState), "a state carried over batches is a TensorState"
    return dict(state.tensors)


def state_from_tensors(tensors: dict[str, Tensor]) -> State | None:
    """Inverse of `state_to_tensors`."""
    return TensorState(tensors) if tensors else None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimiser state as named tensors: 'parameter index.name'."""
    states = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in states.items()
        for name, value in entries.items()
        if value is not None
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the optimiser state from `optimizer_tensors`, sharded as its parameters are."""
    states: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in tensors.items():
        number, _, entry = name.partition(".")
        states.setdefault(int(number), {})[entry] = shard_like(value, parameters[int(number)])
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def _write_parts(folder: Path, checkpoint: Checkpoint) -> None:
    for name in _PARTS:
        write_tensors(folder / f"{name}.safetensors", getattr(checkpoint, name))
    write_json(folder / STATE, {"step": checkpoint.step, "state": checkpoint.state})
    write_manifest(folder, _FILES)


def _read(path: Path, step: int) -> Checkpoint:
    check_files(path, _FILES)
    document = read_json_object(path / STATE)
    if document["step"] != step:
        raise ValueError(f"it is that of step {document['step']}")
    parts = {name: read_tensors(path / f"{name}.safetensors") for name in _PARTS}
    return Checkpoint(step=step, state=document["state"], **parts)


_PARTS = ("model", "optimizer", "recurrent_state")
_FILES = (*(f"{name}.safetensors" for name in _PARTS), STATE)


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, damaged or not, the newest first."""
    return [step for step, _ in _newest_first(folder)]


def _newest_first(folder: Path) -> Iterator[tuple[int, Path]]:
    numbered = []
    for path in folder.glob(f"{CHECKPOINT_PREFIX}*"):
        number = path.name.removeprefix(CHECKPOINT_PREFIX)
        if number.isdigit():
            numbered.append((int(number), path))
    yield from sorted(numbered, reverse=True)


def _remove_old(folder: Path, newest: int) -> None:
    """Keep the last ones; later steps belong to a training that was resumed before them."""
    retained = [path for step, path in _newest_first(folder) if step <= newest][:MAX_CHECKPOINTS]
    for path in folder.iterdir():
        if path not in retained and path.name.startswith(CHECKPOINT_PREFIX):
            discard(path)
