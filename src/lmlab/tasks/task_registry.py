"""Task registry: (pair) classification, tagging, span extraction, generation, multi-hop QA."""

from __future__ import annotations

from typing import Any

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.plugins import TASKS as PLUGIN_TASKS
from lmlab.core.plugins import Plugin, plugins, resolve_names
from lmlab.tasks.classification import Classification, PairClassification
from lmlab.tasks.cloze import ClozeClassification
from lmlab.tasks.generation import Generation
from lmlab.tasks.multihop.multihop_task import MultihopQA
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.tagging import Tagging
from lmlab.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Classification,
        PairClassification,
        ClozeClassification,
        Tagging,
        SpanExtraction,
        Generation,
        MultihopQA,
    )
}


def find_task(name: str) -> type[Task]:
    """The task of that name, lmlab's own or of a plug-in; plug-ins are imported only if asked."""
    if name in TASKS:
        return TASKS[name]
    names = resolve_names("task", plugins(PLUGIN_TASKS), TASKS)
    if name in names.usable:
        plugin = names.usable[name]
        return _checked_task(plugin, plugin.load())
    if name in names.problems:
        raise UserError(names.problems[name])
    raise unknown_name("task", name, task_names())


def task_names() -> list[str]:
    """The names of all tasks; nothing is imported."""
    return [*TASKS, *resolve_names("task", plugins(PLUGIN_TASKS), TASKS).usable]


def _checked_task(plugin: Plugin, task: Any) -> type[Task]:
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise plugin.error(f"{plugin.target} must be a subclass of lmlab.tasks.task.Task")
    if getattr(task, "name", None) != plugin.name:
        raise plugin.error(f"the task {plugin.target} must have the name {plugin.name!r}")
    return task
