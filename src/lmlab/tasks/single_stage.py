"""Single-stage fine-tuning of sequence tasks: one training, any long-text strategy; prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.data.lines import ReadingReport
from lmlab.tasks.confidence_intervals import TaskMetrics, measure_answers
from lmlab.tasks.finetune_job import (
    FinetuneJob,
    FinetuneResult,
    evaluation_split,
    fit_stage,
    write_evaluation,
)
from lmlab.tasks.finetune_settings import default_long_config, selection_metric
from lmlab.tasks.finetuned_model import FinetunedModel, load_base
from lmlab.tasks.input_pipeline import EncodedSplit, InputPipeline, LongTextConfig, SequenceAnswer
from lmlab.tasks.long_context.long_text_strategies import (
    default_long_strategy,
    make_pipeline,
    relevance_supervision_of,
)
from lmlab.tasks.long_context.relevance_labels import relevant_text_recall
from lmlab.tasks.sequence_task import SequenceTask
from lmlab.tasks.task import Row, Splits
from lmlab.tasks.task_rows import read_splits
from lmlab.training.config import apply_settings
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel, load_weights

OPTIONAL_FIELDS = ("question", "prefix")
"""Fields that are used if a row has them."""


class SingleStageTask(SequenceTask):
    """A sequence task fitted by one training, with any strategy for long texts."""

    settings_type: ClassVar[type[Any]] = LongTextConfig

    @classmethod
    def read_rows(
        cls, data: str | Path, *, seed: int, errors: str, report: ReadingReport
    ) -> Splits:
        return read_splits(data, cls, seed=seed, errors=errors, report=report)

    @classmethod
    def from_rows(cls, rows: Sequence[Row], model: TrainedModel) -> Self:
        if model.system.input_kind == "images":
            raise UserError(
                f"{model.card.name} takes images, and a row of {cls.name} has none; use a "
                "text model (bert, gpt …)."
            )
        labels = cls.collect_labels(rows)
        if len(labels) == 1:
            raise UserError(
                f"all {len(rows)} training rows have the label {labels[0]!r}; give rows with two "
                "labels or more."
            )
        return cls(labels)

    @classmethod
    def from_config(cls, config: RunConfig, run: RunFolder) -> Self:
        """The task that a run was fine-tuned to."""
        return cls(() if config.task is None else config.task.labels)

    def fit(self, model: TrainedModel, splits: Splits, job: FinetuneJob) -> FinetuneResult:
        pipeline = self._pipeline(model, splits["train"], job)
        torch.manual_seed(job.config.seed)
        system = pipeline.build(model.system, frozen=job.frozen)
        encoded = {
            name: pipeline.prepare(rows, training=name == "train") for name, rows in splits.items()
        }
        pipeline.setup(system, encoded, job.config.seed)
        metric = selection_metric(job.config, pipeline, encoded)
        job.write_run(model, job.describe(model, self, **pipeline.as_config()))
        config = job.config
        loaders = {
            name: pipeline.batches(split, system, config, training=name == "train")
            for name, split in encoded.items()
            if name != "test" or "validation" not in encoded
        }
        fit_stage(
            system,
            loaders,
            folder=job.folder,
            config=config,
            unit=self.loss_unit,
            metric=metric,
            quiet=job.quiet,
            track=job.track,
        )
        return self._evaluate(system, pipeline, encoded, job)

    def _pipeline(
        self, model: TrainedModel, rows: Sequence[Row], job: FinetuneJob
    ) -> InputPipeline[Any, Any]:
        strategy = job.long or default_long_strategy(model.system, self)
        return make_pipeline(
            strategy,
            judge=relevance_supervision_of(strategy, job.judge, rows),
            task=self,
            tokenizer=model.tokenizer,
            system=model.system,
            settings=apply_settings(default_long_config(model.system), job.settings),
        )

    def _evaluate(
        self,
        system: System,
        pipeline: InputPipeline[Any, Any],
        encoded: Mapping[str, EncodedSplit],
        job: FinetuneJob,
    ) -> FinetuneResult:
        split = evaluation_split(encoded)
        rows = encoded[split].rows
        answers = pipeline.answer(system, encoded[split])
        expected = [self.expected(row) for row in rows]
        metrics = measure_answers(self, expected, [answer.answer for answer in answers])
        if pipeline.name:
            recall = relevant_text_recall(rows, [answer.seen for answer in answers])
            metrics = metrics.extended(recall)
        result = job.result(
            self,
            metrics,
            split=split,
            rows={name: len(part.rows) for name, part in encoded.items()},
            truncated=sum(part.truncated for part in encoded.values()),
            dropped=sum(part.dropped for part in encoded.values()),
            truncated_questions=sum(
                pipeline.count_truncated_questions(part.rows) for part in encoded.values()
            ),
        )
        records = [answer.record(row) for answer, row in zip(answers, rows, strict=True)]
        return write_evaluation(job, result, records)

    @classmethod
    def load(cls, run: RunFolder, config: RunConfig) -> SequenceModel:
        recorded = config.task
        assert recorded is not None, "load_task has checked it"
        task = cls.from_config(config, run)
        base, tokenizer = load_base(run, config)
        pipeline = make_pipeline(
            recorded.details.get("long"),
            judge=recorded.details.get("judge"),
            task=task,
            tokenizer=tokenizer,
            system=base,
            settings=_long_settings(recorded.details),
        )
        system = pipeline.build(base, frozen=recorded.frozen)
        load_weights(system, run)
        return SequenceModel(
            task=task, system=system.eval(), reading=pipeline, tokenizer=tokenizer, path=run.path
        )


def _long_settings(details: Mapping[str, Any]) -> LongTextConfig:
    settings = dict(details.get("long_settings", {}))
    if "retained_blocks" in settings:
        settings["retained_blocks"] = tuple(settings["retained_blocks"])  # JSON has no tuples
    return LongTextConfig(**settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceModel(FinetunedModel):
    """A model fine-tuned to a sequence task."""

    task: SequenceTask
    system: System
    reading: InputPipeline[Any, Any]

    @property
    def base(self) -> System:
        base: System = self.system.base  # type: ignore[assignment]
        return base

    def check(self, rows: Sequence[Row]) -> None:
        for number, row in enumerate(rows, start=1):
            if missing := [name for name in self.task.input_fields() if name not in row]:
                raise UserError(f"row {number} of {self.task.name} needs {missing[0]}.")

    def predict_with_details(self, rows: Sequence[Row]) -> list[SequenceAnswer]:
        self.check(rows)
        names = (*self.task.input_fields(), *OPTIONAL_FIELDS)
        bare = [{name: row[name] for name in names if name in row} for row in rows]
        return self.reading.answer(self.system, self.reading.prepare(bare, training=False))

    def metrics(self, rows: Sequence[Row], answers: Sequence[Any]) -> TaskMetrics | None:
        if not rows or not all(name in row for row in rows for name in self.task.fields):
            return None
        return measure_answers(self.task, [self.task.expected(row) for row in rows], answers)

    def questions_cut(self, rows: Sequence[Row]) -> int:
        return self.reading.count_truncated_questions(rows)
