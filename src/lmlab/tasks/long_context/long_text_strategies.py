"""The ways to read long texts, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmlab.core.errors import UserError, unknown_among, unknown_name
from lmlab.core.system import System
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.classification import (
    Classify,
    Pair,
)
from lmlab.tasks.input_pipeline import (
    NO_LIMIT,
    LongSettings,
    Reading,
)
from lmlab.tasks.long_context.memrecall_pipeline import Recalling
from lmlab.tasks.long_context.sliding_windows import PLAIN_WAYS
from lmlab.tasks.span_extraction import Span
from lmlab.tasks.tagging import Tag
from lmlab.tasks.task import Task

RECALL = Recalling.name
WAYS: Mapping[str, type[Reading]] = {**PLAIN_WAYS, RECALL: Recalling}
JUDGES = ("labels", "interventions")


def find_reading(
    way: str | None,
    *,
    judge: str | None,
    task: Task,
    tokenizer: Tokenizer,
    system: System,
    settings: LongSettings,
) -> Reading:
    """How rows are read: the way of that name, or as the task does where there is none."""
    if way is not None and way not in WAYS:
        told = {name: kind.told for name, kind in WAYS.items()}
        raise unknown_among("way to read long texts", way, told)
    if way is not None and not _may_be_long(task):
        raise UserError(f"long texts are read for span, classify and tag, not for {task.name}.")
    if way is not None and system.window is None:
        raise UserError("this system takes texts of any length; leave --long out.")
    kind = Reading if way is None else WAYS[way]
    return kind(
        task=task,
        tokenizer=tokenizer,
        vocabulary=system.vocabulary,
        longest=NO_LIMIT if system.window is None else system.window + 1,
        settings=settings,
        judge=judge,
    )


def default_way(system: System, task: Task) -> str | None:
    """Recalling, where the system is made for it and the task is one of those that can."""
    return RECALL if system.recall is not None and _may_be_long(task) else None


def _may_be_long(task: Task) -> bool:
    return isinstance(task, Classify | Span | Tag) and not isinstance(task, Pair)


def judged_by(way: str | None, judge: str | None, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What teaches the judge: as told, else the rows' labels where all have them."""
    if way != RECALL:
        if judge is not None:
            raise UserError(f"only --long {RECALL} has a judge; leave --judge out.")
        return None
    if judge is None:
        return JUDGES[0] if all("relevant" in row for row in rows) else JUDGES[1]
    if judge not in JUDGES:
        raise unknown_name("teacher of the judge", judge, JUDGES)
    return judge
