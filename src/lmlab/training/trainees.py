"""What gradient descent optimises: a system, or one with a teacher or a predecessor.

It has a loss of its own, and its parameters and state are those of a checkpoint; evaluation and the
saved weights are of the system alone.
"""

from __future__ import annotations

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import TrainingData
from lmlab.training.distillation import make_distillation
from lmlab.training.module_replacing import ReplacingSchedule, make_module_replacing
from lmlab.training.training_origins import TrainingOrigins


def make_trainee(
    system: System, origins: TrainingOrigins, config: TrainingConfig, data: TrainingData
) -> System:
    """The system itself, or its training with a teacher or by module replacing."""
    if (teacher := origins.teacher) is not None:
        teacher.system.check_length(data.max_length)
        teacher.system.check_condition_length(data.max_source_length)
        batch, name = next(data.train.epoch(0)), teacher.description.path
        return make_distillation(system, teacher.system, name, config, batch)
    if (predecessor := origins.predecessor) is not None:
        schedule = replacing_schedule(config, data.train.batches_per_epoch())
        name = predecessor.description.path
        return make_module_replacing(system, predecessor.system, name, schedule)
    return system


def replacing_schedule(config: TrainingConfig, batches_per_epoch: int) -> ReplacingSchedule:
    """As configured; by default the rate rises over half of the steps of the budget."""
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
