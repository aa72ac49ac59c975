"""Fine-tuning: a trained run put to a task, by its features alone or with all its parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.data.batches import LengthBatches
from lmlab.tasks.answering import answer_rows
from lmlab.tasks.catalogue import find_task
from lmlab.tasks.generate import Generate
from lmlab.tasks.rows import Row, read_splits
from lmlab.tasks.systems import Continuing, WithHead, on_top
from lmlab.tasks.task import Encoded, Task, TooLong, batch_of
from lmlab.training.config import TrainingConfig, apply_settings, with_budget
from lmlab.training.data import Watched
from lmlab.training.files import read_tensors, write_json, write_text
from lmlab.training.loop import Job, fit_by_gradient
from lmlab.training.processes import make_accelerator
from lmlab.training.reporting import Reporter
from lmlab.training.runs import Model, RunFolder, load_run
from lmlab.training.train import continues

DEFAULTS = TrainingConfig(
    learning_rate=1e-3,
    schedule="cosine",
    warmup_steps=20,
    tokens_per_batch=1024,
    epochs=10,
)
"""What a fine-tuning is like unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class FineTuned:
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

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def finetune(
    run: Path | str,
    *,
    task: str,
    data: str | Path,
    out: Path | str,
    frozen: bool = False,
    examples: int | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> FineTuned:
    """Put the trained `run` to a task on the rows of `data`, into the folder `out`.

    `frozen` learns the head alone (feature transfer), else all parameters go on learning (parameter
    transfer). `examples` takes so many rows of the training split. `data` is a file of JSON lines,
    a folder with one for each split, or a built-in set; `tasks/*.py` say what a row holds. With
    `resume` a fine-tuning that was stopped goes on.
    """
    kind, folder = find_task(task), RunFolder(Path(out))
    config = replace(apply_settings(DEFAULTS, dict(settings or {})), seed=seed)
    config = with_budget(config, epochs=epochs, steps=steps, minutes=minutes)
    before = folder.read_config() if continues(folder, resume) else None
    model = load_run(run)
    if frozen and kind is Generate:
        raise UserError("generation needs all parameters to learn; leave --frozen out.")
    splits = read_splits(data, kind, seed=seed)
    if examples is not None:
        if not 1 <= examples <= len(splits["train"]):
            most = len(splits["train"])
            raise UserError(f"there are {most} rows to train on, and {examples} were asked for.")
        splits["train"] = splits["train"][:examples]
    asked = make_task(kind, splits["train"], model)
    torch.manual_seed(seed)
    system = on_top(model.system, asked, frozen=frozen)
    prepared = {name: prepare(rows, asked, model) for name, rows in splits.items()}
    described = _described(model, asked, config, frozen, str(data), str(run))
    if before is not None and before.get("task") != described["task"]:
        raise UserError(
            f"the run {folder.path} was begun with another task, run or data; resume it with its "
            "own, or choose another --out."
        )
    folder.create()
    model.tokenizer.save(folder.tokenizer)
    folder.write_environment()
    folder.write_config(described)
    _fit(system, prepared, config, folder, quiet)
    load_best(system, folder)
    return _judge(system, asked, model, prepared, folder)


def make_task(kind: type[Task], rows: Sequence[Row], model: Model) -> Task:
    """The task with the labels of its training rows."""
    if kind is Generate:
        return Generate(conditional=model.card.conditional)
    return kind(kind.labels_of(rows))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The rows of one split that can be used, as the system reads them."""

    rows: list[Row]
    encoded: list[Encoded]
    dropped: int


def prepare(rows: Sequence[Row], task: Task, model: Model) -> Prepared:
    """Every row encoded; those whose answer lies behind the longest input are left out."""
    longest = 10**6 if model.system.window is None else model.system.window + 1
    kept: list[Row] = []
    encoded: list[Encoded] = []
    for row in rows:
        try:
            encoded.append(task.encode(row, model.tokenizer, model.system.vocabulary, longest))
        except TooLong:
            continue
        kept.append(row)
    return Prepared(rows=kept, encoded=encoded, dropped=len(rows) - len(kept))


class TaskBatches:
    """Rows of like length side by side, as `LengthBatches` makes them, with their labels."""

    def __init__(self, prepared: Prepared, config: TrainingConfig, pad: int, *, shuffle: bool):
        self.prepared, self.pad = prepared, pad
        self.order = LengthBatches(
            _Lengths(prepared, pad),  # type: ignore[arg-type]
            tokens_per_batch=config.tokens_per_batch,
            seed=config.seed,
            shuffle=shuffle,
        )

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for batch in self.order.epoch(number, start):
            rows = batch.rows.tolist()
            yield batch_of([self.prepared.encoded[row] for row in rows], self.pad, rows)


class _Lengths:
    """What `LengthBatches` asks of a dataset, of prepared rows."""

    has_condition = False

    def __init__(self, prepared: Prepared, pad: int) -> None:
        encoded = prepared.encoded
        self._tokens = [np.array(each.tokens) for each in encoded]
        self._lengths = np.array(
            [max(len(each.tokens), len(each.condition or ())) for each in encoded]
        )
        self.vocabulary = _Pad(pad)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Any:
        return self._tokens[index]

    def lengths_between(self, low: int, high: int) -> Any:
        return self._lengths[low:high]


@dataclass(frozen=True)
class _Pad:
    pad: int


def _described(
    model: Model, task: Task, config: TrainingConfig, frozen: bool, data: str, run: str
) -> dict[str, Any]:
    """config.json: the base run's, with the task on top."""
    kept = {k: v for k, v in model.config.items() if k not in ("format", "lmlab")}
    told = {
        "name": task.name,
        "labels": list(task.labels),
        "head": not isinstance(task, Generate),
        "frozen": frozen,
        "data": data,
        "run": run,
    }
    return {**kept, "seed": config.seed, "training": asdict(config), "task": told}


def _fit(
    system: System,
    prepared: Mapping[str, Prepared],
    config: TrainingConfig,
    folder: RunFolder,
    quiet: bool,
) -> None:
    accelerator = make_accelerator()
    pad = system.vocabulary.pad
    held = next((s for s in ("validation", "test") if prepared.get(s)), None)
    train = TaskBatches(prepared["train"], config, pad, shuffle=True)
    data = Watched(
        train=train,
        held_out=None if held is None else TaskBatches(prepared[held], config, pad, shuffle=False),
        held_out_split=held,
    )
    reporter = Reporter(
        folder.metrics,
        config,
        quiet=quiet,
        tensorboard=folder.path / "tensorboard",
        unit="nats a token" if isinstance(system, Continuing) else "nats an answer",
    )
    fit_by_gradient(
        Job(
            system=system.to(accelerator.device),
            data=data,
            config=config,
            run=folder,
            accelerator=accelerator,
            reporter=reporter,
        )
    )


def load_best(system: System, folder: RunFolder) -> None:
    """The weights that the run has kept."""
    system.load_state_dict(read_tensors(folder.weights))
    system.eval()


def _judge(
    system: WithHead | Continuing,
    task: Task,
    model: Model,
    prepared: Mapping[str, Prepared],
    folder: RunFolder,
) -> FineTuned:
    """Answer the test rows, write what was answered, and say how right it is."""
    split = next(s for s in ("test", "validation", "train") if prepared.get(s))
    asked = prepared[split]
    found = answer_rows(system, task, model.tokenizer, asked.rows, asked.encoded)
    expected = [task.expected(row) for row in asked.rows]
    metrics = task.measure(expected, found)
    lines = [
        json.dumps({**row, "answered": answer}, ensure_ascii=False)
        for row, answer in zip(asked.rows, found, strict=True)
    ]
    write_text(folder.path / "predictions.jsonl", "\n".join(lines) + "\n")
    result = FineTuned(
        path=folder.path,
        task=task.name,
        labels=task.labels,
        rows={name: len(each.rows) for name, each in prepared.items()},
        cut=sum(encoded.cut for each in prepared.values() for encoded in each.encoded),
        dropped=sum(each.dropped for each in prepared.values()),
        metrics=metrics,
        split=split,
    )
    write_json(folder.path / "evaluation.json", result.as_dict())
    return result
