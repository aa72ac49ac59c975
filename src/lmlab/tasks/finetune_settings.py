"""The settings of a fine-tuning: which there are, and which have a use for its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.system import System
from lmlab.scoring.translation_metrics import make_metric
from lmlab.tasks.generation import Generation
from lmlab.tasks.input_pipeline import (
    EncodedSplit,
    InputPipeline,
    LongTextConfig,
)
from lmlab.tasks.metrics import bleu
from lmlab.training.config import TrainingConfig

PAIR_SETTINGS = ("select_by", "max_length_ratio")
"""Settings of a training for rows with a source and a target."""
CORPUS_SETTINGS = ("lanes", "span", "min_count", "vocabulary_size")
"""Settings of a training for streams of text and for tokenisers that are made anew."""


def split_long_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of how long texts are read, and those of the training."""
    names = {spec.name for spec in fields(LongTextConfig)}
    return (
        {key: value for key, value in settings.items() if key in names},
        {key: value for key, value in settings.items() if key not in names},
    )


def check_settings_apply(config: TrainingConfig, task: str) -> None:
    """A UserError for a setting of a training that would change nothing of this task's."""
    plain = TrainingConfig()
    for name in (*CORPUS_SETTINGS, *PAIR_SETTINGS):
        if getattr(config, name) == getattr(plain, name):
            continue
        if name in CORPUS_SETTINGS:
            raise UserError(f"a fine-tuning has no use for {name}; leave it out.")
        if task != Generation.name:
            raise UserError(
                f"{name} is for the task {Generation.name}, not for {task}; leave it out."
            )


def default_long_config(system: System) -> LongTextConfig:
    """The defaults of how long texts are read, or what the system was built with."""
    if system.recall is None:
        return LongTextConfig()
    names = (spec.name for spec in fields(MemRecallConfig))
    return LongTextConfig(**{name: getattr(system.recall, name) for name in names})


class ValidationRowsBleu:
    """BLEU of what is written for rows, for choosing weights by."""

    name = "bleu"

    def __init__(self, reading: InputPipeline, prepared: EncodedSplit) -> None:
        self.reading, self.prepared = reading, prepared
        self.expected = [reading.task.expected(row) for row in prepared.rows]
        make_metric("bleu")  # where sacreBLEU is missing, it is told now

    def __call__(self, system: System) -> float:
        found = [each.answer for each in self.reading.answer(system, self.prepared)]
        return bleu(self.expected, found)


def selection_metric(
    config: TrainingConfig, reading: InputPipeline, prepared: Mapping[str, EncodedSplit]
) -> ValidationRowsBleu | None:
    """What weights are kept by, where it is not the loss."""
    if config.select_by == "loss":
        return None
    return ValidationRowsBleu(reading, prepared["validation"])
