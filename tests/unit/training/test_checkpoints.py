from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lmlab.core.atomic_files import write_text
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors, write_tensors
from lmlab.training.checkpoints import (
    Checkpoint,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)


def checkpoint_at(step: int) -> Checkpoint:
    return Checkpoint(
        step=step,
        state={"best": float("inf"), "rate": 0.1 + 0.2},
        model={"weight": torch.full((50, 50), float(step))},
        optimizer={"0.step": torch.tensor(float(step))},
        recurrent_state={"h": torch.full((2, 3), -float(step))},
    )


def loaded_step(folder: Path) -> int | None:
    """The step of the checkpoint that would be resumed, its content checked."""
    checkpoint = load_checkpoint(folder, report=lambda sentence: None)
    if checkpoint is None:
        return None
    assert torch.equal(checkpoint.model["weight"], checkpoint_at(checkpoint.step).model["weight"])
    assert torch.equal(
        checkpoint.recurrent_state["h"], checkpoint_at(checkpoint.step).recurrent_state["h"]
    )
    assert torch.equal(
        checkpoint.optimizer["0.step"], checkpoint_at(checkpoint.step).optimizer["0.step"]
    )
    return checkpoint.step


def test_checkpoint_round_trips_bit_for_bit(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint_at(7))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.state == {"best": float("inf"), "rate": 0.1 + 0.2}
    assert loaded_step(tmp_path) == 7


def test_load_checkpoint_returns_none_without_a_checkpoint(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "trainer") is None


def test_only_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 100, 20):  # 100 is from a training that was resumed at 10
        save_checkpoint(tmp_path, checkpoint_at(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-20"]


class Killed(BaseException):
    """Stands for a kill: no handler runs."""


def disk_calls(monkeypatch: pytest.MonkeyPatch, *, die_at: int | None = None) -> list[str]:
    """Record every call that changes the disk; be killed just before the call numbered `die_at`."""
    made: list[str] = []

    def watch(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            if len(made) == die_at:
                raise Killed
            made.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        *((os, name) for name in ("fsync", "open", "replace", "rename", "mkdir", "unlink")),
        (shutil, "rmtree"),
    ):
        watch(owner, name)
    return made


def test_kill_at_any_disk_call_leaves_a_valid_checkpoint(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = disk_calls(patch)
        save_checkpoint(tmp_path / "count", checkpoint_at(1))
    assert len(calls) > 12
    outcomes = []
    for die_at in range(len(calls) + 1):
        folder = tmp_path / f"trainer-{die_at}"
        save_checkpoint(folder, checkpoint_at(1))
        save_checkpoint(folder, checkpoint_at(2))
        with pytest.MonkeyPatch.context() as patch:
            disk_calls(patch, die_at=die_at)
            with suppress(Killed):
                save_checkpoint(folder, checkpoint_at(3))
        outcomes.append(loaded_step(folder))
        save_checkpoint(folder, checkpoint_at(4))
        assert loaded_step(folder) == 4
        assert len(list(folder.iterdir())) == 2
    # The old one until the rename, the new one from then on.
    assert outcomes == sorted(outcomes, key=lambda step: step or 0)
    assert set(outcomes) == {2, 3}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "empty"])
def test_damaged_checkpoint_falls_back_to_the_previous(
    tmp_path: Path, name: str, damage: str
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint_at(step))
    path = tmp_path / "step-2" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-30] + b"\xff" + content[-29:])
    reported: list[str] = []
    checkpoint = load_checkpoint(tmp_path, reported.append)
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert len(reported) == 1
    assert "step-2 is damaged" in reported[0]


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """No file may grow beyond `size`, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_reported_and_last_checkpoint_loads(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint_at(1))
    with disk_full_after(1000), pytest.raises(UserError, match=r"disk is full.*step-2.*--resume"):
        save_checkpoint(tmp_path, checkpoint_at(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert loaded_step(tmp_path) == 1


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "can't be written to; choose a folder"),
        (errno.EACCES, "can't be written to; choose a folder"),
        (errno.EIO, "could not be written .*check the disk"),
    ],
)
def test_disk_errors_are_user_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    save_checkpoint(tmp_path, checkpoint_at(1))

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(UserError, match=message):
            save_checkpoint(tmp_path, checkpoint_at(2))
    assert loaded_step(tmp_path) == 1


def test_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "trainer").write_text("")
    with pytest.raises(UserError, match="a file is in its way"):
        save_checkpoint(tmp_path / "trainer", checkpoint_at(1))


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    embedding = torch.nn.Embedding(100, 8)
    output = torch.nn.Linear(8, 100, bias=False)
    output.weight = embedding.weight
    pair = torch.nn.ModuleDict({"a": embedding, "b": output})
    path = tmp_path / "model.safetensors"
    write_tensors(path, pair.state_dict())
    assert 100 * 8 * 4 < path.stat().st_size < 100 * 8 * 4 + 400
    loaded = read_tensors(path)
    assert sorted(loaded) == ["a.weight", "b.weight"]
    assert torch.equal(loaded["b.weight"], embedding.weight)


def test_tensor_views_and_empty_tensors_round_trip(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(3, 4)
    tensors: dict[str, Tensor] = {
        "row": table[1],
        "column": table[:, 2],
        "turned": table.T,
        "none": torch.empty(0),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(5),
        "flags": torch.tensor([True, False]),
    }
    write_tensors(tmp_path / "x.safetensors", tensors)
    loaded = read_tensors(tmp_path / "x.safetensors")
    assert sorted(loaded) == sorted(tensors)
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "RMSprop", "SGD"])
def test_restored_optimizer_continues_identically(tmp_path: Path, kind: str) -> None:
    def make() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        layer = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(layer.weight, 0.5)
        torch.nn.init.constant_(layer.bias, 0.1)
        options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
        return layer, getattr(torch.optim, kind)(layer.parameters(), lr=0.1, **options)

    def steps(layer: torch.nn.Linear, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            optimizer.zero_grad()
            layer(torch.full((1, 3), number + 1.0)).pow(2).sum().backward()
            optimizer.step()

    whole, first, second = make(), make(), make()
    steps(*whole, range(5))
    steps(*first, range(3))
    write_tensors(tmp_path / "optimizer.safetensors", optimizer_tensors(first[1]))
    second[0].load_state_dict(first[0].state_dict())
    restore_optimizer(second[1], read_tensors(tmp_path / "optimizer.safetensors"))
    steps(*second, range(3, 5))
    assert torch.equal(second[0].weight, whole[0].weight)
    assert torch.equal(second[0].bias, whole[0].bias)


def test_text_files_are_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with disk_full_after(2), pytest.raises(UserError, match="disk is full"):
        write_text(path, "new and long")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
