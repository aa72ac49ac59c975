"""What gradient descent optimises: a system, or one with a teacher or a predecessor.

It has a loss of its own, and its parameters and state are those of a checkpoint; evaluation and the
saved weights are of the system alone. The two methods are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import TrainingData
from lmlab.training.training_origins import TrainingOrigins

if TYPE_CHECKING:
    from lmlab.training.module_replacing import ReplacingSchedule


def make_trainee(
    system: System, origins: TrainingOrigins, config: TrainingConfig, data: TrainingData
) -> System:
    """The system itself, or its training with a teacher or by module replacing."""
    if (teacher := origins.teacher) is not None:
        from lmlab.training.distillation import make_distillation

        teacher.system.check_length(data.max_length)
        teacher.system.check_condition_length(data.max_source_length)
        batch, name = next(data.train.epoch(0)), teacher.description.path
        return make_distillation(system, teacher.system, name, config, batch)
    if (predecessor := origins.predecessor) is not None:
        from lmlab.training.module_replacing import make_module_replacing

        schedule = replacing_schedule(config, data.train.batches_per_epoch())
        name = predecessor.description.path
        return make_module_replacing(system, predecessor.system, name, schedule)
    return system


def begin_with_predecessor(system: System, origins: TrainingOrigins) -> None:
    """Copy the weights that a successor takes from its predecessor, if there is one."""
    if (predecessor := origins.predecessor) is not None:
        from lmlab.training.module_replacing import load_predecessor

        load_predecessor(system, predecessor.system, predecessor.description.path)


def replacing_schedule(config: TrainingConfig, batches_per_epoch: int) -> ReplacingSchedule:
    """As configured; by default the rate rises over half of the steps of the budget."""
    from lmlab.training.module_replacing import ReplacingSchedule

    steps = config.replacing_steps
    if steps is None:
        budgets = [] if config.steps is None else [config.steps]
        if config.epochs is not None:
            budgets.append(config.epochs * batches_per_epoch // config.grad_accumulation)
        if not budgets:
            raise UserError(
                "a budget in minutes does not say in how many steps modules are replaced; give "
                "--set replacing_steps=1000, say, or a budget of --steps."
            )
        steps = min(budgets) // 2
    return ReplacingSchedule(start=config.replacing_rate, steps=steps)
