"""The registry of strategies for long texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmlab.core.errors import UserError, unknown_choice, unknown_name
from lmlab.core.system import System
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.input_pipeline import (
    UNLIMITED_LENGTH,
    InputPipeline,
    LongTextConfig,
)
from lmlab.tasks.long_context.memrecall_pipeline import MemRecallPipeline
from lmlab.tasks.long_context.sliding_windows import WINDOW_STRATEGIES
from lmlab.tasks.sequence_task import SequenceTask

MEMRECALL = MemRecallPipeline.name
LONG_TEXT_STRATEGIES: Mapping[str, type[InputPipeline[Any, Any]]] = {
    **WINDOW_STRATEGIES,
    MEMRECALL: MemRecallPipeline,
}
RELEVANCE_SUPERVISION = ("labels", "interventions")


def make_pipeline(
    strategy: str | None,
    *,
    judge: str | None,
    task: SequenceTask,
    tokenizer: Tokenizer,
    system: System,
    settings: LongTextConfig,
) -> InputPipeline[Any, Any]:
    """The input pipeline of the strategy of that name; None for plain truncation."""
    if strategy is not None:
        if strategy not in LONG_TEXT_STRATEGIES:
            choices = {name: kind.description for name, kind in LONG_TEXT_STRATEGIES.items()}
            raise unknown_choice("strategy for long texts", strategy, choices)
        task.check_options(long=strategy)
        if system.window is None:
            raise UserError("--long does not apply to a model without a window; remove it.")
    kind = InputPipeline if strategy is None else LONG_TEXT_STRATEGIES[strategy]
    return kind(
        task=task,
        tokenizer=tokenizer,
        vocabulary=system.vocabulary,
        max_length=UNLIMITED_LENGTH if system.window is None else system.window + 1,
        settings=settings,
        relevance_supervision=judge,
    )


def default_long_strategy(system: System, task: SequenceTask) -> str | None:
    """MemRecall, if the model is built for it and --long applies to the task."""
    return MEMRECALL if system.memrecall is not None and "long" in task.options else None


def relevance_supervision_of(
    strategy: str | None, judge: str | None, rows: Sequence[Mapping[str, Any]]
) -> str | None:
    """The supervision of the judge: as given, else the rows' labels if all have them."""
    if strategy != MEMRECALL:
        if judge is not None:
            raise UserError(f"--judge applies to --long {MEMRECALL} only; remove it.")
        return None
    if judge is None:
        return (
            RELEVANCE_SUPERVISION[0]
            if all("relevant" in row for row in rows)
            else RELEVANCE_SUPERVISION[1]
        )
    if judge not in RELEVANCE_SUPERVISION:
        raise unknown_name("supervision of the judge", judge, RELEVANCE_SUPERVISION)
    return judge
