"""How the blocks of a stack are computed: their precision, and gradient checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Output = TypeVar("Output")


@dataclass(frozen=True, kw_only=True)
class BlockExecution:
    """Autocast to a lower precision, and gradient checkpointing (Chen et al. 2016), per block.

    What is outside of the blocks (embeddings, the residual stream, emissions, losses) is float32.
    With checkpointing the activations inside a block are not kept for the backward pass but
    computed again, from the same random state, so that dropout is the same: memory for one block
    instead of all, for about a third more time.
    """

    dtype: torch.dtype = torch.float32
    checkpointing: bool = False

    @property
    def lowers_precision(self) -> bool:
        """Whether blocks are computed in less than float32."""
        return self.dtype != torch.float32

    def run(
        self, function: Callable[..., Output], values: Tensor, *arguments: Any, **named: Any
    ) -> Output:
        """Call a pass of a block on its input `values`."""
        if self.checkpointing and torch.is_grad_enabled():
            result: Output = checkpoint(
                self._compute, function, values, *arguments, use_reentrant=False, **named
            )
            return result
        return self._compute(function, values, *arguments, **named)

    def _compute(
        self, function: Callable[..., Output], values: Tensor, *arguments: Any, **named: Any
    ) -> Output:
        if not self.lowers_precision:
            return function(values, *arguments, **named)
        with torch.autocast(values.device.type, dtype=self.dtype):
            return function(values, *arguments, **named)


class BlockRunner(nn.Module):
    """A network that computes blocks as it is told, by `execution`: base class of `Stack`."""

    def __init__(self) -> None:
        super().__init__()
        self.execution = BlockExecution()

    def compute_by(self, execution: BlockExecution) -> None:
        """Choose the precision of the blocks, and gradient checkpointing."""
        self.execution = execution
