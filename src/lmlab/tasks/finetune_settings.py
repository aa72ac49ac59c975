"""The settings of a fine-tuning: which there are, and which have a use for its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import RecallSettings
from lmlab.core.system import System
from lmlab.scoring.translation_metrics import make_metric
from lmlab.tasks.generation import Generate
from lmlab.tasks.input_pipeline import (
    LongSettings,
    Prepared,
    Reading,
)
from lmlab.tasks.metrics import bleu
from lmlab.training.config import TrainingConfig

OF_PAIRS = ("keep_by", "most_ratio")
"""Settings of a training for rows with a source and a target."""
OF_CORPORA = ("lanes", "span", "min_count", "vocabulary_size")
"""Settings of a training for streams of text and for tokenisers that are made anew."""


def parted(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of how long texts are read, and those of the training."""
    names = {spec.name for spec in fields(LongSettings)}
    return (
        {key: value for key, value in settings.items() if key in names},
        {key: value for key, value in settings.items() if key not in names},
    )


def check_use(config: TrainingConfig, task: str) -> None:
    """A UserError for a setting of a training that would change nothing of this task's."""
    plain = TrainingConfig()
    for name in (*OF_CORPORA, *OF_PAIRS):
        if getattr(config, name) == getattr(plain, name):
            continue
        if name in OF_CORPORA:
            raise UserError(f"a fine-tuning has no use for {name}; leave it out.")
        if task != Generate.name:
            raise UserError(
                f"{name} is for the task {Generate.name}, not for {task}; leave it out."
            )


def long_settings(system: System) -> LongSettings:
    """The defaults of how long texts are read, or what the system was built with."""
    if system.recall is None:
        return LongSettings()
    names = (spec.name for spec in fields(RecallSettings))
    return LongSettings(**{name: getattr(system.recall, name) for name in names})


class RowsBleu:
    """BLEU of what is written for rows, for choosing weights by."""

    name = "bleu"

    def __init__(self, reading: Reading, prepared: Prepared) -> None:
        self.reading, self.prepared = reading, prepared
        self.expected = [reading.task.expected(row) for row in prepared.rows]
        make_metric("bleu")  # where sacreBLEU is missing, it is told now

    def __call__(self, system: System) -> float:
        found = [each.answer for each in self.reading.answer(system, self.prepared)]
        return bleu(self.expected, found)


def judge_of(
    config: TrainingConfig, reading: Reading, prepared: Mapping[str, Prepared]
) -> RowsBleu | None:
    """What weights are kept by, where it is not the loss."""
    if config.keep_by == "loss":
        return None
    return RowsBleu(reading, prepared["validation"])
