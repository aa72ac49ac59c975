"""BERT-of-Theseus (`--predecessor RUN`): compressing a system by progressive module replacing.

Xu et al. 2020. A successor of fewer layers shares the predecessor's embeddings and output, and each
of its layers stands for a module of several layers of the predecessor. In each training step every
module is replaced with probability p, which rises to one; then the successor is trained alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.state import State
from lmlab.core.system import System, TrainableSystem
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.block import Block
from lmlab.layers.stack import Stack


@dataclass(frozen=True, kw_only=True)
class ReplacingSchedule:
    """Linear curriculum: p = min(1, start + (1 - start) · step / steps), step = 0, 1, …

    The paper's min(1, k · step + b) with b = start and k = (1 - start) / steps.
    """

    start: float
    steps: int

    def rate(self, step: int) -> float:
        """The probability that a module is replaced in the step after `step` others."""
        if step >= self.steps:
            return 1.0
        return self.start + (1 - self.start) * step / self.steps


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplaceableStack:
    """A successor's stack with the predecessor's modules that its layers replace."""

    stack: Stack
    modules: Sequence[Sequence[Block]]
    """For each layer of the successor, the layers of the predecessor, frozen."""

    def mixed_blocks(self, replaced: Sequence[bool]) -> list[Block]:
        """The successor's layers where replaced, else the predecessor's modules."""
        blocks: list[Block] = []
        for own, module, is_replaced in zip(
            self.stack.all_blocks(), self.modules, replaced, strict=True
        ):
            blocks += [own] if is_replaced else module
        return blocks


class ModuleReplacing(TrainableSystem):
    """A successor with the modules of its predecessor: what is optimised in place of the successor.

    The predecessor's modules are frozen and in evaluation mode. While modules are replaced, all but
    the successor's layers is frozen too; after that all is trained.
    """

    loss_is_comparable = False

    def __init__(
        self,
        successor: TrainableSystem,
        stacks: Sequence[ReplaceableStack],
        schedule: ReplacingSchedule,
    ) -> None:
        super().__init__()
        self.vocabulary = successor.vocabulary
        self.validation_metric = successor.validation_metric
        self.successor = successor
        self.stacks = tuple(stacks)  # the predecessor's modules are not saved with the successor
        self.schedule = schedule
        self.rate = schedule.rate(0)

    @property
    def parameter_count(self) -> int:
        return self.successor.parameter_count

    def begin_step(self, step: int) -> None:
        self.rate = self.schedule.rate(step)
        self.successor.begin_step(step)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        if self.rate >= 1:
            return self.successor.loss(batch, state=state, generator=generator)
        with ExitStack() as mixed, gradients_disabled(self.shared_parameters()):
            for item in self.stacks:
                device = None if generator is None else generator.device
                draws = torch.rand(len(item.modules), generator=generator, device=device)
                blocks = item.mixed_blocks((draws < self.rate).tolist())
                mixed.enter_context(item.stack.running(blocks))
            loss, after = self.successor.loss(batch, state=state, generator=generator)
        return Loss(_with_gradient(loss.total), loss.count, loss.parts), after

    def shared_parameters(self) -> list[nn.Parameter]:
        """What the successor shares with the predecessor: all but its layers."""
        own = {
            id(parameter)
            for item in self.stacks
            for block in item.stack.all_blocks()
            for parameter in block.parameters()
        }
        return [p for p in self.successor.parameters() if p.requires_grad and id(p) not in own]


def _with_gradient(total: Tensor) -> Tensor:
    """The total of a loss; where no module was replaced, no parameter has a gradient, and it is a
    leaf, so that the backward pass has nothing to do."""
    return total if total.requires_grad else total.detach().requires_grad_()


@contextmanager
def gradients_disabled(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Context manager in which computations do not record gradients of some parameters."""
    frozen = list(parameters)
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def make_module_replacing(
    successor: System, predecessor: System, name: str, schedule: ReplacingSchedule
) -> ModuleReplacing:
    """The replacing of a predecessor's modules; a UserError where the two do not fit.

    The predecessor is frozen. The successor must hold its weights, see `load_predecessor`.
    """
    assert isinstance(successor, TrainableSystem)
    predecessor.requires_grad_(False).eval()
    return ModuleReplacing(successor, pair_stacks(successor, predecessor, name), schedule)


def pair_stacks(successor: System, predecessor: System, name: str) -> list[ReplaceableStack]:
    """The stacks of a successor with the modules of the predecessor's stacks of the same names."""
    stacks = named_stacks(successor)
    if not stacks or successor.memory_length is not None or not all(map(_replaceable, stacks)):
        raise UserError(
            "--predecessor applies only to systems with layers of attention, none of them disabled "
            "and without a memory of earlier segments; remove it."
        )
    others = dict(named_stacks(predecessor))
    depths = [(stack.depth, others[key].depth) for key, stack in stacks]
    if any(large % small for small, large in depths) or all(s == t for s, t in depths):
        small, large = next((pair for pair in depths if pair[0] != pair[1]), depths[0])
        divisors = [str(n) for n in range(1, large) if large % n == 0]
        raise UserError(
            f"a successor has fewer layers than its predecessor {name}, a divisor of {large}, got "
            f"{small}; give --set layers={' or '.join(divisors)}."
        )
    return [
        ReplaceableStack(stack=stack, modules=split_modules(others[key].all_blocks(), stack.depth))
        for key, stack in stacks
    ]


def split_modules(blocks: Sequence[Block], count: int) -> list[Sequence[Block]]:
    """Consecutive layers in `count` modules of equal size."""
    size = len(blocks) // count
    return [blocks[start : start + size] for start in range(0, len(blocks), size)]


def named_stacks(system: nn.Module) -> list[tuple[str, Stack]]:
    """All stacks of layers of a system by name, its objective's included."""
    return [(name, module) for name, module in system.named_modules() if isinstance(module, Stack)]


def _replaceable(named: tuple[str, Stack]) -> bool:
    stack = named[1]
    of_attention = all(isinstance(b.mixer, MultiHeadAttention) for b in stack.all_blocks())
    return of_attention and not stack.disabled_layers and not stack.disabled_heads


def load_predecessor(successor: System, predecessor: System, name: str) -> None:
    """Copy to the successor what both have: all but the layers, and the first layers; a UserError
    where the settings do not fit.

    In the paper the first layers are those of BERT before the predecessor was fine-tuned to a task.
    """
    weights, own = predecessor.state_dict(), successor.state_dict()
    fits = {key: key in weights and weights[key].shape == own[key].shape for key in own}
    unlike = [key for key in own if not fits[key]]
    if unlike:
        raise UserError(
            f"the settings of this successor differ from those of its predecessor {name} in more "
            f"than the number of layers ({unlike[0]}); remove the others from --set."
        )
    successor.load_state_dict({key: weights[key] for key in own})
