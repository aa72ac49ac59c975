"""Listing of all settings that `--set` takes, of training and fine-tuning: `lmlab.settings`.

Importing this module, and listing the training settings, does not import torch.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from lmlab.core.errors import UserError
from lmlab.training.setting_records import (
    SettingRecord,
    config_settings,
    system_settings,
    training_settings,
)


def settings(
    system: str | Path | ModuleType | None = None,
    *,
    recipe: str | None = None,
    task: str | None = None,
) -> list[SettingRecord]:
    """Records of the training settings; with a system, its own settings come first.

    `recipe` gives the values that a recipe of the system sets; `task` lists the settings of a
    fine-tuning task instead.

    >>> {record.name: record.default for record in settings()}["learning_rate"]
    0.002
    """
    if system is not None and task is not None:
        raise UserError(f"the task {task} does not apply to the system {system}; remove one.")
    if system is not None:
        return system_settings(system, recipe)
    if recipe is not None:
        raise UserError(f"the recipe {recipe} needs a system; name one, such as lstm.")
    return training_settings() if task is None else task_settings(task)


def task_settings(task: str) -> list[SettingRecord]:
    """The settings of a task and of its training, with the defaults of `lmlab finetune`."""
    # Imported late: the tasks need torch.
    from lmlab.tasks.finetune import FINETUNE_DEFAULTS
    from lmlab.tasks.finetune_settings import CORPUS_SETTINGS, PAIR_SETTINGS
    from lmlab.tasks.task_registry import find_task

    task_type = find_task(task)
    unused = {*CORPUS_SETTINGS, *(() if task_type.reads_pairs else PAIR_SETTINGS)}
    training = [r for r in training_settings(FINETUNE_DEFAULTS) if r.name not in unused]
    return [*config_settings("task", task_type.settings_type()), *training]
