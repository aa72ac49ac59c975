"""Fine-tuning jobs: inputs of a task's `fit`, one training stage, evaluation files, the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import write_json, write_text
from lmlab.core.errors import UserError
from lmlab.core.failure_record import recording_failure
from lmlab.core.system import System
from lmlab.core.tracking_options import Tracker
from lmlab.data.lines import ReadingReport
from lmlab.tasks.confidence_intervals import TaskMetrics
from lmlab.tasks.task import Task
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader, FitData
from lmlab.training.distributed import make_accelerator, place_training
from lmlab.training.external_memory import load_external_memory
from lmlab.training.loop import FitJob, ValidationMetric, fit_by_gradient
from lmlab.training.run_config import RunConfig, lmlab_version
from lmlab.training.run_folder import RunFolder, TrainedModel, load_weights
from lmlab.training.run_records import RowsRecord, TaskRecord
from lmlab.training.trackers import Trackers
from lmlab.training.training_logs import Reporter


@dataclass(frozen=True, kw_only=True)
class FinetuneResult:
    """The result of a fine-tuning."""

    path: Path
    task: str
    labels: tuple[str, ...]
    rows: Mapping[str, int]
    """The number of rows used of each split."""
    truncated: int
    """Rows whose text was truncated."""
    dropped: int
    """Rows dropped because their answer was truncated."""
    metrics: Mapping[str, float]
    """On the test split, or else the validation split."""
    split: str
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % confidence intervals of the metrics: Wilson's for proportions, else bootstrap."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user: the accuracy is not better than that of the majority class."""
    skipped: int = 0
    """Training rows that were skipped as empty or malformed."""
    dropped_by_length_ratio: int = 0
    """Training rows dropped by max_length_ratio."""
    truncated_questions: int = 0
    """Rows whose question was truncated to half of the maximum length."""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True, kw_only=True)
class FinetuneJob:
    """The inputs of a fine-tuning besides the model and the rows."""

    folder: RunFolder
    config: TrainingConfig
    settings: Mapping[str, Any]
    """Settings of the task, unparsed."""
    data: str
    run: str
    split_seed: int
    """The seed by which the rows were split."""
    report: ReadingReport
    errors: str = "strict"
    frozen: bool = False
    long: str | None = None
    judge: str | None = None
    quiet: bool = False
    track: Sequence[str | Tracker] = ()
    """Trackers that get the metrics too."""
    before: RunConfig | None = None
    """The config of the run that is resumed."""

    def describe(self, model: TrainedModel, task: Task, **details: Any) -> RunConfig:
        """The base run's config with the task; `details` are the task's own."""
        return replace(
            model.config,
            seed=self.config.seed,
            training=self.config,
            task=TaskRecord(
                name=task.name,
                labels=task.labels,
                head=task.has_head,
                frozen=self.frozen,
                data=self.data,
                run=self.run,
                # Round-tripped through JSON, so that a resumed run compares equal.
                details=json.loads(json.dumps(details)),
            ),
            rows=RowsRecord(seed=self.split_seed, errors=self.errors),
            lmlab=lmlab_version(),
        )

    def write_run(
        self, model: TrainedModel, config: RunConfig, others: Mapping[str, bytes] | None = None
    ) -> None:
        """Write the run's folder without weights; a resumed run must have the same task."""
        if self.before is not None and self.before.task != config.task:
            raise UserError(
                f"the run {self.folder.path} was started with another task, run or data; "
                "resume it with its own, or choose another --out."
            )
        self.folder.write_description(
            config,
            model.tokenizer,
            source_tokenizer=model.source_tokenizer,
            memories=load_external_memory(model.config.memories, RunFolder(model.path).memory),
            extra_files=others,
            new_run=self.before is None,
        )

    def result(
        self, task: Task, metrics: TaskMetrics, *, split: str, **counts: Any
    ) -> FinetuneResult:
        """The result; `counts` are its fields about rows."""
        return FinetuneResult(
            path=self.folder.path,
            task=task.name,
            labels=task.labels,
            metrics=metrics.metrics,
            intervals=metrics.intervals,
            warnings=metrics.warnings,
            split=split,
            skipped=self.report.empty_rows + self.report.bad_rows,
            dropped_by_length_ratio=self.report.uneven_pairs,
            **counts,
        )


def fit_stage(
    system: System,
    loaders: Mapping[str, BatchLoader],
    *,
    folder: RunFolder,
    config: TrainingConfig,
    unit: str,
    title: str | None = None,
    metric: ValidationMetric | None = None,
    quiet: bool = False,
    track: Sequence[str | Tracker] = (),
) -> None:
    """Train a model on the loader of `train`, validated on that of a held-out split.

    The best weights are written to the folder and loaded in the end. `title` is printed first;
    `metric` selects the best weights instead of the loss; `track` gets the metrics too.
    """
    accelerator = make_accelerator()
    place_training(system, config, accelerator)
    folder.create()
    held_out_split = next((name for name in ("validation", "test") if name in loaders), None)
    data = FitData(
        train=loaders["train"],
        held_out=None if held_out_split is None else loaders[held_out_split],
        held_out_split=held_out_split,
    )
    trackers = Trackers(track, folder.path, asdict(config))
    reporter = Reporter(folder.metrics, config, quiet=quiet, trackers=trackers, unit=unit)
    if title is not None:
        reporter.print_message(title)
    job = FitJob(
        system=system,
        data=data,
        config=config,
        run=folder,
        accelerator=accelerator,
        reporter=reporter,
        metric=metric,
    )
    with recording_failure(folder.path, writes=accelerator.is_main_process):
        result = fit_by_gradient(job)
    result.check_complete(folder)
    folder.verify()
    load_weights(system, folder)
    system.eval()


def evaluation_split(splits: Mapping[str, object]) -> str:
    """The split that a fine-tuned model is evaluated on: the first that is not empty."""
    return next(name for name in ("test", "validation", "train") if splits.get(name))


def write_evaluation(
    job: FinetuneJob, result: FinetuneResult, records: Iterable[Mapping[str, Any]]
) -> FinetuneResult:
    """Write predictions.jsonl and evaluation.json."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    write_text(job.folder.path / "predictions.jsonl", "\n".join(lines) + "\n")
    write_json(job.folder.path / "evaluation.json", result.as_dict())
    return result
