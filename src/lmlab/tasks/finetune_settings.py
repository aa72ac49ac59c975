"""Fine-tuning options: splits task from training settings, rejects inapplicable; BLEU selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.system import System
from lmlab.scoring.translation_metrics import make_metric
from lmlab.tasks.input_pipeline import EncodedSplit, InputPipeline, LongTextConfig
from lmlab.tasks.metrics import bleu
from lmlab.tasks.task import Task
from lmlab.training.config import TOKENIZER_SETTINGS, TrainingConfig

PAIR_SETTINGS = ("select_by", "max_length_ratio")
"""Training settings that apply to rows with a source and a target."""
CORPUS_SETTINGS = ("stream_batch_size", "bptt", *TOKENIZER_SETTINGS)
"""Training settings that apply to contiguous text and to new tokenizers."""


def split_settings(
    settings: Mapping[str, Any], task: type[Task]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the task, and those of the training."""
    names = {spec.name for spec in fields(task.settings_type)}
    normalised = {key.strip().replace("-", "_"): value for key, value in settings.items()}
    return (
        {key: value for key, value in normalised.items() if key in names},
        {key: value for key, value in normalised.items() if key not in names},
    )


def check_settings_apply(config: TrainingConfig, task: type[Task]) -> None:
    """A UserError for a training setting that does not apply to this task."""
    defaults = TrainingConfig()
    for name in (*CORPUS_SETTINGS, *PAIR_SETTINGS):
        if getattr(config, name) == getattr(defaults, name):
            continue
        if name in CORPUS_SETTINGS:
            raise UserError(f"{name} does not apply to fine-tuning; remove it.")
        if not task.reads_pairs:
            raise UserError(
                f"{name} does not apply to the task {task.name}, whose rows are not pairs of a "
                "source and a target; remove it."
            )


def default_long_config(system: System) -> LongTextConfig:
    """The default settings for long texts, or those that the model was built with."""
    if system.memrecall is None:
        return LongTextConfig()
    names = (spec.name for spec in fields(MemRecallConfig))
    return LongTextConfig(**{name: getattr(system.memrecall, name) for name in names})


class ValidationRowsBleu:
    """BLEU on the validation rows, to select the best weights by."""

    name = "bleu"

    def __init__(self, pipeline: InputPipeline[Any, Any], prepared: EncodedSplit) -> None:
        self.reading, self.prepared = pipeline, prepared
        self.expected = [pipeline.task.expected(row) for row in prepared.rows]
        make_metric("bleu")  # raises here if sacreBLEU is missing

    def __call__(self, system: System) -> float:
        answers = [answer.answer for answer in self.reading.answer(system, self.prepared)]
        return bleu(self.expected, answers)


def selection_metric(
    config: TrainingConfig, pipeline: InputPipeline[Any, Any], prepared: Mapping[str, EncodedSplit]
) -> ValidationRowsBleu | None:
    """The metric that selects the best weights, if it is not the loss."""
    if config.select_by == "loss":
        return None
    return ValidationRowsBleu(pipeline, prepared["validation"])
