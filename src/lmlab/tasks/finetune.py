"""Fine-tuning: a trained run put to a task, by its features alone or with all its parameters."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lmlab.core.atomic_files import (
    write_json,
    write_text,
)
from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.seeds import check_seed
from lmlab.core.system import System
from lmlab.data.length_ratio import within_length_ratio
from lmlab.data.lines import ReadingReport
from lmlab.models.image_to_text import ImageToTextLM
from lmlab.tasks.confidence_intervals import measure_answers
from lmlab.tasks.finetune_settings import (
    check_settings_apply,
    default_long_config,
    selection_metric,
    split_long_settings,
)
from lmlab.tasks.finetuned_systems import FinetunedGenerator
from lmlab.tasks.generation import Generation
from lmlab.tasks.input_pipeline import (
    EncodedSplit,
    InputPipeline,
)
from lmlab.tasks.load_pretrained import load_pretrained
from lmlab.tasks.long_context.long_text_strategies import (
    default_long_strategy,
    make_pipeline,
    relevance_supervision_of,
)
from lmlab.tasks.long_context.relevance_labels import relevant_text_recall
from lmlab.tasks.task import Task
from lmlab.tasks.task_registry import (
    HOPS,
    find_task,
)
from lmlab.tasks.task_rows import (
    Row,
    Splits,
    count_unknown_words,
    read_splits,
    split_seed,
)
from lmlab.training.config import TrainingConfig, apply_settings, replace_budgets, with_budget
from lmlab.training.data_loaders import FitData
from lmlab.training.distributed import (
    exclusive_output,
    make_accelerator,
)
from lmlab.training.external_memory import load_external_memory
from lmlab.training.loop import FitJob, ValidationMetric, fit_by_gradient
from lmlab.training.reporting import Reporter
from lmlab.training.run_folder import (
    RunFolder,
    TrainedModel,
    load_weights,
)
from lmlab.training.train import check_validation_split, resumes

FINETUNE_DEFAULTS = TrainingConfig(
    learning_rate=1e-3,
    schedule="cosine",
    warmup_steps=20,
    tokens_per_batch=1024,
    epochs=10,
)
"""What a fine-tuning is like unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class FinetuneResult:
    """What came of a fine-tuning."""

    path: Path
    task: str
    labels: tuple[str, ...]
    rows: Mapping[str, int]
    """How many of each split were used."""
    cut: int
    """Rows whose text was longer than the system takes, and was cut."""
    dropped: int
    """Rows that could not be used, because the answer was cut away."""
    metrics: Mapping[str, float]
    """On the test split (the validation split, where there is no other)."""
    split: str
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals of the measures: Wilson's of shares, else by bootstrap over rows."""
    warnings: tuple[str, ...] = ()
    """Sentences for the user: the accuracy is not better than that of the majority class."""
    skipped: int = 0
    """Training rows that were skipped when read: an empty text or side, or not to be understood."""
    uneven: int = 0
    """Training rows left out because one side is too much longer than the other."""
    questions_cut: int = 0
    """Rows whose question was longer than half of what the system takes, and was cut."""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


@exclusive_output
def finetune(
    run: Path | str,
    *,
    task: str,
    data: str | Path,
    out: Path | str,
    frozen: bool = False,
    long: str | None = None,
    judge: str | None = None,
    examples: int | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    errors: str = "strict",
    quiet: bool = False,
) -> FinetuneResult:
    """Put the trained `run` to a task on the rows of `data`, into the folder `out`.

    A `run` that was fine-tuned itself is begun with as it is, but for its head.

    `frozen` learns the head alone (feature transfer), else all parameters go on learning (parameter
    transfer). `examples` takes so many rows of the training split. `data` is a file of JSON lines,
    a folder with one for each split, or a built-in set; `tasks/*.py` say what a row holds. With
    `resume` a fine-tuning that was stopped goes on.

    `long` is how texts longer than the system takes are read: head, tail, head-tail, windows,
    pooling or memrecall (CogLTX); where it is not told, by memrecall if the system is made for it,
    and else cut at their ends. `judge` is what teaches memrecall's judge, labels (`relevant` of the
    rows, the default where they have it) or interventions.
    """
    check_seed(seed)
    if task == HOPS:
        if frozen or long or judge:
            raise UserError(f"the task {HOPS} has no --frozen, --long or --judge; leave them out.")
        return _put_to_hops(
            run,
            data=data,
            out=out,
            examples=examples,
            settings=settings,
            epochs=epochs,
            steps=steps,
            minutes=minutes,
            seed=seed,
            resume=resume,
            errors=errors,
            quiet=quiet,
        )
    kind, folder = find_task(task), RunFolder(Path(out))
    of_reading, of_training = split_long_settings(settings or {})
    see = f"lmlab settings --task {task}"
    config = replace(
        apply_settings(FINETUNE_DEFAULTS, replace_budgets(of_training), see), seed=seed
    )
    check_settings_apply(config, task)
    config = with_budget(config, beside=of_training, epochs=epochs, steps=steps, minutes=minutes)
    before = folder.resumed_config() if resumes(folder, resume) else None
    model = load_pretrained(run)
    if frozen and kind is Generation:
        raise UserError("generation needs all parameters to learn; leave --frozen out.")
    met = ReadingReport()
    divided_by = split_seed(model.config, data)
    splits = read_splits(data, kind, seed=divided_by, errors=errors, report=met)
    check_validation_split(config, selects="validation" in splits)
    met.uneven_pairs = _drop_uneven(splits, config.max_length_ratio)
    asked = make_task(kind, splits["train"], model)
    limit_training_rows(
        splits, examples
    )  # after the labels are known: few rows need not have them all
    if sentence := count_unknown_words(splits["train"], asked, model.tokenizer).warning():
        warnings.warn(sentence, LmlabWarning, stacklevel=2)
    way = long or default_long_strategy(model.system, asked)
    reading = make_pipeline(
        way,
        judge=relevance_supervision_of(way, judge, splits["train"]),
        task=asked,
        tokenizer=model.tokenizer,
        system=model.system,
        settings=apply_settings(default_long_config(model.system), of_reading),
    )
    torch.manual_seed(seed)
    system = reading.build(model.system, frozen=frozen)
    prepared = {
        name: reading.prepare(rows, training=name == "train") for name, rows in splits.items()
    }
    reading.begin(system, prepared, seed)
    judged_by_bleu = selection_metric(config, reading, prepared)
    described = _described(model, reading, config, frozen, str(data), str(run))
    described["rows"] = {"seed": divided_by, "errors": errors}
    if before is not None and before.get("task") != described["task"]:
        raise UserError(
            f"the run {folder.path} was begun with another task, run or data; resume it with its "
            "own, or choose another --out."
        )
    write_beginning(folder, model, described, begins=before is None)
    _fit(system, reading, prepared, config, folder, judged_by_bleu, quiet)
    load_best_weights(system, folder)
    return _judge(system, reading, prepared, folder, met)


def write_beginning(
    folder: RunFolder,
    model: TrainedModel,
    described: Mapping[str, Any],
    *,
    begins: bool,
    others: Mapping[str, bytes] | None = None,
) -> None:
    """Write the folder of a new run but for its weights, with what it has of the run that it
    begins with; see `RunFolder.write_description`."""
    folder.write_description(
        described,
        model.tokenizer,
        sources=model.source_tokenizer,
        memories=load_external_memory(model.config, RunFolder(model.path).memory),
        others=others,
        begins=begins,
    )


def _drop_uneven(splits: Splits, most: float | None) -> int:
    """Leave training rows out whose sides are of too uneven lengths, and count them."""
    rows = splits["train"]
    if most is not None:
        splits["train"] = [
            row for row in rows if within_length_ratio(str(row["target"]), str(row["source"]), most)
        ]
    if not splits["train"]:
        raise UserError(
            f"no training row is as even as max_length_ratio={most:g}; give a larger one."
        )
    return len(rows) - len(splits["train"])


def limit_training_rows(splits: Splits, examples: int | None) -> None:
    """Leave only so many training rows, where a number is told."""
    if examples is None:
        return
    if not 1 <= examples <= len(splits["train"]):
        most = len(splits["train"])
        raise UserError(f"there are {most} rows to train on, and {examples} were asked for.")
    splits["train"] = splits["train"][:examples]


def _put_to_hops(run: Path | str, **words: Any) -> FinetuneResult:
    """Questions over several hops are put to two systems, in stages of their own."""
    from lmlab.tasks.multihop.two_stage_training import finetune_hops

    return finetune_hops(run, **words)


def make_task(kind: type[Task], rows: Sequence[Row], model: TrainedModel) -> Task:
    """The task with the labels of its training rows."""
    if kind is Generation:
        return Generation(
            conditional=model.card.conditional, source_tokenizer=model.source_tokenizer
        )
    if isinstance(model.system, ImageToTextLM):
        raise UserError(
            f"{model.card.name} reads images, and a row of {kind.name} has none; give a system "
            "that reads texts (bert, gpt …)."
        )
    labels = kind.collect_labels(rows)
    if len(labels) == 1:
        raise UserError(
            f"all {len(rows)} rows to train on have the label {labels[0]!r}, so that there is "
            "nothing to tell apart; give rows with two labels or more."
        )
    return kind(labels)


def _described(
    model: TrainedModel,
    reading: InputPipeline,
    config: TrainingConfig,
    frozen: bool,
    data: str,
    run: str,
) -> dict[str, Any]:
    """config.json: the base run's, with the task on top."""
    kept = {k: v for k, v in model.config.items() if k not in ("format", "lmlab")}
    task = reading.task
    told = {
        "name": task.name,
        "labels": list(task.labels),
        "head": not isinstance(task, Generation),
        "frozen": frozen,
        "data": data,
        "run": run,
    }
    if reading.name:
        told |= {"long": reading.name, "judge": reading.judge}
        # As JSON gives it back, so that a resumed run compares.
        told["long_settings"] = json.loads(json.dumps(asdict(reading.settings)))
    return {**kept, "seed": config.seed, "training": asdict(config), "task": told}


def _fit(
    system: System,
    reading: InputPipeline,
    prepared: Mapping[str, EncodedSplit],
    config: TrainingConfig,
    folder: RunFolder,
    judge: ValidationMetric | None,
    quiet: bool,
) -> None:
    accelerator = make_accelerator()
    held = next((s for s in ("validation", "test") if prepared.get(s)), None)
    data = FitData(
        train=reading.batches(prepared["train"], system, config, training=True),
        held_out=None
        if held is None
        else reading.batches(prepared[held], system, config, training=False),
        held_out_split=held,
    )
    reporter = Reporter(
        folder.metrics,
        config,
        quiet=quiet,
        tensorboard=folder.path / "tensorboard",
        unit="nats a token" if isinstance(system, FinetunedGenerator) else "nats an answer",
    )
    outcome = fit_by_gradient(
        FitJob(
            system=system.to(accelerator.device),
            data=data,
            config=config,
            run=folder,
            accelerator=accelerator,
            reporter=reporter,
            judge=judge,
        )
    )
    outcome.check_complete(folder)


def load_best_weights(system: System, folder: RunFolder) -> None:
    """The weights that the run has kept."""
    folder.verify()
    load_weights(system, folder)
    system.eval()


def _judge(
    system: System,
    reading: InputPipeline,
    prepared: Mapping[str, EncodedSplit],
    folder: RunFolder,
    met: ReadingReport,
) -> FinetuneResult:
    """Answer the test rows, write what was answered, and say how right it is."""
    split = next(s for s in ("test", "validation", "train") if prepared.get(s))
    asked, task = prepared[split], reading.task
    found = reading.answer(system, asked)
    expected = [task.expected(row) for row in asked.rows]
    measured = measure_answers(task, expected, [each.answer for each in found])
    metrics = dict(measured.metrics)
    if reading.name:
        metrics |= relevant_text_recall(asked.rows, [each.seen for each in found])
    lines = [
        json.dumps({**row, **each.as_dict()}, ensure_ascii=False)
        for row, each in zip(asked.rows, found, strict=True)
    ]
    write_text(folder.path / "predictions.jsonl", "\n".join(lines) + "\n")
    result = FinetuneResult(
        path=folder.path,
        task=task.name,
        labels=task.labels,
        rows={name: len(each.rows) for name, each in prepared.items()},
        cut=sum(each.cut for each in prepared.values()),
        dropped=sum(each.dropped for each in prepared.values()),
        metrics=metrics,
        intervals=measured.intervals,
        warnings=measured.warnings,
        split=split,
        skipped=met.empty_rows + met.bad_rows,
        uneven=met.uneven_pairs,
        questions_cut=sum(reading.questions_cut(each.rows) for each in prepared.values()),
    )
    write_json(folder.path / "evaluation.json", result.as_dict())
    return result
