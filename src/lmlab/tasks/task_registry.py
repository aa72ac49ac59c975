"""The tasks by name."""

from __future__ import annotations

from lmlab.core.errors import unknown_name
from lmlab.tasks.classification import (
    Classify,
    Pair,
)
from lmlab.tasks.generation import Generate
from lmlab.tasks.span_extraction import Span
from lmlab.tasks.tagging import Tag
from lmlab.tasks.task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Classify, Pair, Tag, Span, Generate)}

HOPS = "hops"
"""The task of questions over several hops, whose rows, stages and answers are its own (CogQA)."""


def find_task(name: str) -> type[Task]:
    """The task of that name."""
    if name not in TASKS:
        raise unknown_name("task", name, [*TASKS, HOPS])
    return TASKS[name]
