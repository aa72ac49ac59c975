"""The ways to read long texts, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmlab.core.errors import UserError, unknown_choice, unknown_name
from lmlab.core.system import System
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.classification import (
    Classification,
    PairClassification,
)
from lmlab.tasks.input_pipeline import (
    UNLIMITED_LENGTH,
    InputPipeline,
    LongTextConfig,
)
from lmlab.tasks.long_context.memrecall_pipeline import MemRecallPipeline
from lmlab.tasks.long_context.sliding_windows import WINDOW_STRATEGIES
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.tagging import Tagging
from lmlab.tasks.task import Task

MEMRECALL = MemRecallPipeline.name
LONG_TEXT_STRATEGIES: Mapping[str, type[InputPipeline]] = {
    **WINDOW_STRATEGIES,
    MEMRECALL: MemRecallPipeline,
}
RELEVANCE_SUPERVISION = ("labels", "interventions")


def make_pipeline(
    way: str | None,
    *,
    judge: str | None,
    task: Task,
    tokenizer: Tokenizer,
    system: System,
    settings: LongTextConfig,
) -> InputPipeline:
    """How rows are read: the way of that name, or as the task does where there is none."""
    if way is not None and way not in LONG_TEXT_STRATEGIES:
        told = {name: kind.told for name, kind in LONG_TEXT_STRATEGIES.items()}
        raise unknown_choice("way to read long texts", way, told)
    if way is not None and not _may_be_long(task):
        raise UserError(f"long texts are read for span, classify and tag, not for {task.name}.")
    if way is not None and system.window is None:
        raise UserError("this system takes texts of any length; leave --long out.")
    kind = InputPipeline if way is None else LONG_TEXT_STRATEGIES[way]
    return kind(
        task=task,
        tokenizer=tokenizer,
        vocabulary=system.vocabulary,
        longest=UNLIMITED_LENGTH if system.window is None else system.window + 1,
        settings=settings,
        judge=judge,
    )


def default_long_strategy(system: System, task: Task) -> str | None:
    """Recalling, where the system is made for it and the task is one of those that can."""
    return MEMRECALL if system.recall is not None and _may_be_long(task) else None


def _may_be_long(task: Task) -> bool:
    return isinstance(task, Classification | SpanExtraction | Tagging) and not isinstance(
        task, PairClassification
    )


def relevance_supervision_of(
    way: str | None, judge: str | None, rows: Sequence[Mapping[str, Any]]
) -> str | None:
    """What teaches the judge: as told, else the rows' labels where all have them."""
    if way != MEMRECALL:
        if judge is not None:
            raise UserError(f"only --long {MEMRECALL} has a judge; leave --judge out.")
        return None
    if judge is None:
        return (
            RELEVANCE_SUPERVISION[0]
            if all("relevant" in row for row in rows)
            else RELEVANCE_SUPERVISION[1]
        )
    if judge not in RELEVANCE_SUPERVISION:
        raise unknown_name("teacher of the judge", judge, RELEVANCE_SUPERVISION)
    return judge
