"""`lmlab.settings`: records of everything that `--set` takes, of trainings and of fine-tunings.

Importing this module, and listing the training settings, does not import torch.
"""

from __future__ import annotations

from lmlab.core.errors import UserError
from lmlab.training.setting_records import (
    Setting,
    config_settings,
    system_settings,
    training_settings,
)


def settings(
    system: str | None = None, *, recipe: str | None = None, task: str | None = None
) -> list[Setting]:
    """Records of the training settings; with a system, its own settings come first.

    `recipe` gives the values that a recipe of the system sets; `task` lists the settings of a
    fine-tuning task instead.

    >>> {each.name: each.default for each in settings()}["learning_rate"]
    0.002
    """
    if system is not None and task is not None:
        raise UserError(f"the task {task} does not apply to the system {system}; remove one.")
    if system is not None:
        return system_settings(system, recipe)
    if recipe is not None:
        raise UserError(f"the recipe {recipe} needs a system; name one, such as lstm.")
    return training_settings() if task is None else task_settings(task)


def task_settings(task: str) -> list[Setting]:
    """The settings of a task and of its training, with the defaults of `lmlab finetune`."""
    # Imported late: the tasks need torch.
    from lmlab.layers.cogqa_config import HopSettings
    from lmlab.tasks.finetune import DEFAULTS
    from lmlab.tasks.finetune_settings import (
        OF_CORPORA,
        OF_PAIRS,
    )
    from lmlab.tasks.generation import Generate
    from lmlab.tasks.input_pipeline import LongSettings
    from lmlab.tasks.task_registry import (
        HOPS,
        find_task,
    )

    if task != HOPS:
        find_task(task)  # raises the error that names the tasks
    own = HopSettings() if task == HOPS else LongSettings()
    unused = {*OF_CORPORA, *(() if task == Generate.name else OF_PAIRS)}
    training = [each for each in training_settings(DEFAULTS) if each.name not in unused]
    return [*config_settings("task", own), *training]
