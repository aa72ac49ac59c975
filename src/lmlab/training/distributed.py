"""Distributed training (Accelerate, torchrun): shards, all-reduce, gather, seeds, output lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from accelerate import Accelerator, PartialState
from torch import Tensor, nn

from lmlab.core.atomic_files import advising_resume, remove_leftovers, telling_disk_errors
from lmlab.core.batch import Batch
from lmlab.core.compute_options import ComputeOptions, computing_with, current_compute
from lmlab.core.devices import cpu_threads, find_device, find_precision
from lmlab.core.errors import UserError
from lmlab.core.locks import FolderLock, lock_folder
from lmlab.data.batches import shard_rows
from lmlab.layers.block_execution import BlockExecution
from lmlab.layers.model_placement import set_block_execution
from lmlab.training.config import TrainingConfig

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def make_accelerator() -> Accelerator:
    """The chosen device, and the other processes where a launcher started several.

    Of several processes on GPUs each has its own, by its number on its node. The precision is
    lmlab's own, per block, whatever `accelerate launch` was told.
    """
    device = find_device(current_compute().device)
    processes = PartialState(cpu=device.type == "cpu")
    if processes.num_processes == 1:
        processes.device = device
    elif device.index is not None:
        raise UserError(
            f"each of several processes takes a GPU of its own, not {device}; give cuda."
        )
    return Accelerator(mixed_precision="no")


def on_chosen_device(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Train on the `device` that is given, with so many `threads`."""

    @wraps(function)
    def placed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        device, threads = kwargs.get("device"), kwargs.get("threads")
        assert device is None or isinstance(device, str)
        assert threads is None or isinstance(threads, int)
        find_device(device)  # report a missing one before anything else
        with cpu_threads(threads), computing_with(ComputeOptions(device=device)):
            return function(*args, **kwargs)

    return placed


def check_distribution(fitting: str, config: TrainingConfig, *, alone: bool) -> None:
    """A UserError where weights can't be sharded in this training.

    `alone` says that the system is trained without a teacher or predecessor.
    """
    if config.distributed != "fsdp":
        return
    if fitting != "gradient":
        raise UserError(
            "--distributed fsdp applies to systems that are trained by gradients, and this one is "
            "not; remove it."
        )
    if not alone:
        raise UserError("--teacher and --predecessor do not apply to --distributed fsdp; use ddp.")
    for name in ("average", "snapshot_epochs", "compile"):
        if getattr(config, name):
            raise UserError(f"{name} does not apply to --distributed fsdp; remove one of them.")


def place_training(system: nn.Module, config: TrainingConfig, accelerator: Accelerator) -> None:
    """Move a system to the training device, with the precision of its blocks and checkpointing."""
    execution = BlockExecution(
        dtype=find_precision(config.precision, accelerator.device),
        checkpointing=config.gradient_checkpointing,
    )
    set_block_execution(system, execution)
    system.to(accelerator.device)


def lock_output(folder: Path, *, wait: float = 0.0) -> FolderLock:
    """Lock an output folder; a disk error becomes a UserError.

    Leftovers of killed processes in it and in its subfolders are removed.
    """
    with telling_disk_errors(folder):
        lock = lock_folder(folder, wait=wait)
        remove_leftovers(folder)
        for subfolder in folder.iterdir():
            if subfolder.is_dir() and not subfolder.is_symlink():
                remove_leftovers(subfolder)
    return lock


def exclusive_output(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Hold the lock of the folder `out` during a call; the main process holds it for all."""

    @wraps(function)
    def locked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # Without `out` the call raises the TypeError that names the missing argument.
        if "out" not in kwargs or not make_accelerator().is_main_process:
            return function(*args, **kwargs)
        with lock_output(Path(str(kwargs["out"]))), advising_resume():
            return function(*args, **kwargs)

    return locked


def shard_batch(batch: Batch, accelerator: Accelerator) -> Batch | None:
    """This process's rows of a batch; None where it has nothing to predict."""
    if accelerator.num_processes > 1:
        batch = shard_rows(batch, accelerator.process_index, accelerator.num_processes)
    return batch.to(accelerator.device) if batch.count else None


def all_reduce_gradients(parameters: Iterable[nn.Parameter], accelerator: Accelerator) -> None:
    """All-reduce: sum every gradient over all processes, in one exchange.

    A parameter that no process used keeps no gradient; so the sum is what one process would have
    computed from the whole batch.
    """
    if accelerator.num_processes == 1:
        return
    parameters = list(parameters)
    used = torch.tensor([float(p.grad is not None) for p in parameters], device=accelerator.device)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([*(gradient.detach().reshape(-1).float() for gradient in gradients), used])
    flat = accelerator.reduce(flat, reduction="sum")
    chunks = flat.split([*(p.numel() for p in parameters), len(parameters)])
    for parameter, summed, users in zip(parameters, chunks[:-1], chunks[-1].tolist(), strict=True):
        parameter.grad = summed.view_as(parameter).to(parameter.dtype) if users else None


def all_reduce_sum(numbers: Tensor, accelerator: Accelerator) -> list[float]:
    """All-reduce: sum a vector of numbers over all processes."""
    if accelerator.num_processes > 1:
        numbers = accelerator.reduce(numbers.to(accelerator.device), reduction="sum")
    values: list[float] = numbers.tolist()
    return values


def gather_rows(tensors: dict[str, Tensor], accelerator: Accelerator) -> dict[str, Tensor]:
    """Gather the rows of all processes, in the order before `shard_batch`."""
    world = accelerator.num_processes
    if world == 1:
        return tensors
    gathered = {name: accelerator.gather(value.contiguous()) for name, value in tensors.items()}
    return {
        name: value.unflatten(0, (world, -1)).transpose(0, 1).flatten(0, 1)
        for name, value in gathered.items()
    }


def local_rows(tensors: dict[str, Tensor], accelerator: Accelerator) -> dict[str, Tensor]:
    """This process's rows of the output of `gather_rows`."""
    index, world = accelerator.process_index, accelerator.num_processes
    return {
        name: value[index::world].clone().to(accelerator.device) for name, value in tensors.items()
    }


def main_process_first(accelerator: Accelerator) -> AbstractContextManager[None]:
    """The main process runs first; the others then find its files."""
    return nullcontext() if accelerator.num_processes == 1 else accelerator.main_process_first()


def seed_step(seed: int, step: int, accelerator: Accelerator) -> torch.Generator:
    """Seed the randomness of one step, and return its generator for explicit sampling.

    It depends on the seed, the step and the process alone. So resuming needs no stored random
    state, and no validation, probe or figure in between can change a training.
    """
    step_seed = (seed * 1_000_003 + step) * 1_009 + accelerator.process_index
    step_seed = (step_seed * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**63
    torch.manual_seed(step_seed)
    generator = torch.Generator(device=accelerator.device)
    return generator.manual_seed(step_seed)
