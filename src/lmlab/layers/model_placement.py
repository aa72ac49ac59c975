"""Placing a network on a device, and how its blocks are computed there."""

from __future__ import annotations

import torch
from torch import nn

from lmlab.core.compute_options import ComputeOptions
from lmlab.core.devices import check_threads, find_device, find_precision
from lmlab.core.errors import UserError
from lmlab.layers.block_execution import BlockExecution, BlockRunner


def stacks_of(module: object) -> list[BlockRunner]:
    """The stacks of blocks within a network."""
    parts = module.modules() if isinstance(module, nn.Module) else ()
    return [part for part in parts if isinstance(part, BlockRunner)]


def set_block_execution(module: nn.Module, execution: BlockExecution) -> None:
    """Compute the blocks of a network so; a UserError if it has none that this applies to."""
    stacks = stacks_of(module)
    if not stacks and execution != BlockExecution():
        option = "gradient checkpointing" if execution.checkpointing else "a lower precision"
        raise UserError(
            f"{option} applies to Transformer and recurrent layers, which this system does not "
            "have; remove it."
        )
    for stack in stacks:
        stack.compute_by(execution)


def precision_of(module: object) -> str:
    """The precision of a network's blocks; float32 where it has none."""
    stacks = stacks_of(module)
    return str(stacks[0].execution.dtype if stacks else torch.float32).removeprefix("torch.")


def place_model(module: nn.Module, options: ComputeOptions) -> None:
    """Move a loaded network to its device, with the precision of its blocks.

    The threads are those of the whole process.
    """
    device = find_device(options.device)
    dtype = find_precision(options.precision, device)
    check_threads(options.threads)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    set_block_execution(module, BlockExecution(dtype=dtype))
    module.to(device)
