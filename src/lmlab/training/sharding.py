"""Fully sharded data parallelism (FSDP; Zhao et al. 2023): each process has a part of the weights.

Each block of a stack is a unit: its weights are gathered before its forward and its backward pass,
and released after them; its gradients are summed and scattered. All else (embeddings, emission) is
the last unit. Gradients and optimiser states are sharded as the weights are. The functions below
also take systems that are not sharded, and leave them alone; only for sharded ones they import
torch's FSDP, which takes most of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.state import State
from lmlab.core.system import System

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    from lmlab.layers.block import Block

BLOCK_PASSES = ("step", "query", "project", "initial_state")
"""Passes of a block besides `forward`, which need its weights too."""


class ShardedLoss(nn.Module):
    """The loss of a sharded system, in tensors: FSDP looks for them in what a module returns."""

    def __init__(self, system: System) -> None:
        super().__init__()
        self.system = system

    def forward(self, batch: Batch, **options: Any) -> tuple[Tensor, Tensor, State | None]:
        loss, state = self.system(batch, **options)
        return loss.total, loss.count, state

    def loss(self, batch: Batch, **options: Any) -> tuple[Loss, State | None]:
        """The loss of a batch and the state after it, as `TrainableSystem.loss`."""
        total, count, state = self(batch, **options)
        return Loss(total, count), state

    def take_part(self, batch: Batch, generator: torch.Generator) -> None:
        """Gather and scatter with the other processes for a batch of which this one has no row."""
        loss, _ = self.loss(batch.select([0]).to(generator.device), generator=generator)
        (loss.total * 0.0).backward()


def shard_system(system: System, accelerator: Accelerator) -> ShardedLoss:
    """Shard the weights of a system over all processes, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in separate_blocks(system):
        fully_shard(block, mesh=mesh)
        for name in BLOCK_PASSES:
            register_fsdp_forward_method(block, name)
    root = ShardedLoss(system)
    fully_shard(root, mesh=mesh)
    for unit in _units(root):
        unit.set_gradient_divide_factor(1.0)  # sums, which are divided by the total count
        unit.set_force_sum_reduction_for_comms(True)
    return root


def separate_blocks(system: System) -> list[Block]:
    """The blocks that share no weights with another one (as UniLM's two streams would)."""
    from lmlab.layers.stack import Stack  # which not every training needs

    stacks = [module for module in system.modules() if isinstance(module, Stack)]
    blocks = list(dict.fromkeys(block for stack in stacks for block in stack.all_blocks()))
    users = Counter(id(p) for block in blocks for p in set(block.parameters()))
    return [block for block in blocks if all(users[id(p)] == 1 for p in block.parameters())]


def is_sharded(module: nn.Module) -> bool:
    """Whether the weights of a network are sharded."""
    return any(_as_sharded(parameter) is not None for parameter in module.parameters())


@contextmanager
def whole_weights(root: nn.Module) -> Iterator[None]:
    """All weights on every process in this block, for passes that are not the loss (validation).

    The number of these passes may then differ between processes.
    """
    units = list(_units(root)) if isinstance(root, ShardedLoss) else []
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.set_reshard_after_forward(cast(nn.Module, unit) is not root, recurse=False)
            unit.reshard()


def full_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather sharded tensors whole on every process, all of which must call this."""
    return {
        name: value if (sharded := _as_sharded(value)) is None else sharded.full_tensor()
        for name, value in tensors.items()
    }


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor sharded as another of its shape is."""
    sharded = _as_sharded(like)
    if sharded is None or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), sharded.device_mesh, sharded.placements)


def load_whole_state(system: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole tensors into a system that may be sharded."""
    current = system.state_dict()
    placed = {n: shard_like(v, current[n]) if n in current else v for n, v in tensors.items()}
    system.load_state_dict(placed)


def norm_of(norms: Sequence[Tensor]) -> float:
    """The norm of all gradients, from theirs; over all processes where they are sharded."""
    norm = torch.linalg.vector_norm(torch.stack(tuple(norms)))
    sharded = _as_sharded(norm)
    return float(norm if sharded is None else sharded.full_tensor())


def _as_sharded(tensor: Tensor) -> DTensor | None:
    """The tensor, if it is a sharded one; without importing their class where there are none."""
    return cast("DTensor", tensor) if hasattr(tensor, "full_tensor") else None


def _units(root: nn.Module) -> Iterator[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return (module for module in root.modules() if isinstance(module, FSDPModule))
