"""The tasks by name."""

from __future__ import annotations

from lmlab.core.errors import unknown_name
from lmlab.tasks.classification import (
    Classification,
    PairClassification,
)
from lmlab.tasks.generation import Generation
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.tagging import Tagging
from lmlab.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (Classification, PairClassification, Tagging, SpanExtraction, Generation)
}

HOPS = "hops"
"""The task of questions over several hops, whose rows, stages and answers are its own (CogQA)."""


def find_task(name: str) -> type[Task]:
    """The task of that name."""
    if name not in TASKS:
        raise unknown_name("task", name, [*TASKS, HOPS])
    return TASKS[name]
