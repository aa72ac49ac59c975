"""Task registry: (pair) classification, tagging, span extraction, generation, multi-hop QA."""

from __future__ import annotations

from lmlab.core.errors import unknown_name
from lmlab.tasks.classification import Classification, PairClassification
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
        Tagging,
        SpanExtraction,
        Generation,
        MultihopQA,
    )
}


def find_task(name: str) -> type[Task]:
    """The task of that name."""
    if name not in TASKS:
        raise unknown_name("task", name, [*TASKS])
    return TASKS[name]
