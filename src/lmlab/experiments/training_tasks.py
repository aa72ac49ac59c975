"""One training of an experiment as plain data, and what came of it: what an executor carries.

Both are JSON, so that a task can run in another process or on another machine, and a result can be
recorded and read again.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lmlab.core.atomic_files import no_follow, telling_disk_errors
from lmlab.core.child_processes import GRACE_SECONDS
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_dataclass, parse_json
from lmlab.experiments.pruning import PruningPlan
from lmlab.sampling.translation_evaluation import ValidationBleu
from lmlab.training.distributed import lock_output
from lmlab.training.run_folder import RunFolder
from lmlab.training.train import TrainingResult, train
from lmlab.training.training_logs import NOT_FINITE, read_metrics

HELD_OUT_SPLITS = ("validation", "test")
OutcomeState = Literal["finished", "pruned", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """One training to run: plain data."""

    name: str
    """Unique in its experiment."""
    out: str
    """The run's folder."""
    system: str
    """A name, or the path of a file."""
    options: Mapping[str, Any]
    """Keywords of `lmlab.train`, without the folder."""
    threads: int = 1
    """The CPU threads it computes with, on which the last digits of its results depend."""
    metric: str | None = None
    """A metric of `lmlab compare` to evaluate on the validation split; None for the loss."""
    pruning: PruningPlan | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> TrainingTask:
        """The task that `to_json` wrote."""
        values = parse_json(line)
        if values["pruning"] is not None:
            values["pruning"] = PruningPlan.from_record(values["pruning"])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """What came of a training."""

    name: str
    """The task's."""
    state: OutcomeState
    losses: tuple[float, ...] = ()
    """The validation losses, in order."""
    value: float | None = None
    """The validation loss of the selected weights, or the task's metric."""
    unit: str = ""
    """Of the losses."""
    kind: str = ""
    """Of the score that a metric is of: exact, bound …"""
    parameters: int | None = None
    steps: int = 0
    seconds: float = 0.0
    """Wall-clock training time, over all resumed sessions."""
    threads: int = 1
    failure: str = ""
    """Why it failed, as one sentence."""
    diverged: bool = False
    """Whether it failed because its loss or gradient became non-finite."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TrainingOutcome:
        """The outcome of a JSON object; a ValueError where it is none."""
        outcome = parse_dataclass(cls, record)
        return cls(**{**asdict(outcome), "losses": tuple(outcome.losses)})


def log_path(task: TrainingTask) -> Path:
    """Where the output of a training in a process of its own goes."""
    return Path(f"{task.out}.log")


def run_task(task: TrainingTask, *, quiet: bool = True) -> TrainingOutcome:
    """Train, from the last checkpoint if there is one; any error becomes a failed outcome."""
    try:
        with thread_count(task.threads):
            return _train(task, quiet)
    except KeyboardInterrupt:
        return TrainingOutcome(name=task.name, state="interrupted", threads=task.threads)
    except UserError as error:
        return _failed(task, str(error))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return _failed(task, f"{reason} ({log_path(task).name} has the traceback).")


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Compute with that many CPU threads in the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(task: TrainingTask, quiet: bool) -> TrainingOutcome:
    run = RunFolder(Path(task.out))
    # A process of a killed experiment may still be writing its last checkpoint.
    lock_output(run.path, wait=GRACE_SECONDS + 10).release()
    result = train(
        task.system,
        **task.options,
        out=run.path,
        resume=run.exists(),
        quiet=quiet,
        metric=ValidationBleu,
        stopping_rule=None if task.pruning is None else task.pruning.rule(),
    )
    if result.reason == "interrupted":
        return TrainingOutcome(name=task.name, state="interrupted", threads=task.threads)
    losses = validation_losses(run)
    pruned = result.reason == "pruned"
    value, kind = (None, "") if pruned else _value(task, run, result, losses)
    if value is not None and not math.isfinite(value):
        raise UserError(f"{task.metric or 'the validation loss'} is not finite ({value}).")
    return TrainingOutcome(
        name=task.name,
        state="pruned" if pruned else "finished",
        losses=losses,
        value=value,
        unit=result.unit,
        kind=kind,
        parameters=result.parameters,
        steps=result.steps,
        seconds=result.seconds,
        threads=task.threads,
    )


def validation_losses(run: RunFolder) -> tuple[float, ...]:
    """The validation losses of a run, in order."""
    lines = read_metrics(run.metrics)
    return tuple(float(line["loss"]) for line in lines if line["event"] == "validation")


def _value(
    task: TrainingTask, run: RunFolder, result: TrainingResult, losses: Sequence[float]
) -> tuple[float | None, str]:
    """The figure that trials are selected by, and its kind of score."""
    if task.metric is not None:
        from lmlab.experiments.validation_metric import validation_metric

        return validation_metric(run.path, task.options, task.metric)
    return (losses[-1] if result.best is None and losses else result.best), ""


def _failed(task: TrainingTask, failure: str) -> TrainingOutcome:
    lines = read_metrics(RunFolder(Path(task.out)).metrics)
    return TrainingOutcome(
        name=task.name,
        state="failed",
        threads=task.threads,
        seconds=float(lines[-1]["seconds"]) if lines else 0.0,
        steps=int(lines[-1]["step"]) if lines else 0,
        failure=failure,
        diverged=bool(lines) and lines[-1]["event"] == NOT_FINITE,
    )


def open_log(task: TrainingTask) -> int:
    """A descriptor of the task's log file, empty."""
    path = log_path(task)
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=no_follow) as file:
            return os.dup(file.fileno())
