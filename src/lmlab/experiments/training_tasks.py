"""One training of an experiment as plain data, and what came of it: a kind of `Task`.

Both are JSON, so that a training can run in another process or on another machine, and its result
can be recorded and read again.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lmlab.core.atomic_files import no_follow, telling_disk_errors
from lmlab.core.child_processes import GRACE_SECONDS
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_dataclass
from lmlab.experiments.pruning import PruningPlan
from lmlab.experiments.tasks import Task, TaskOutcome, unexpected_error
from lmlab.sampling.translation_evaluation import ValidationBleu
from lmlab.training.checkpoints import checkpoint_steps
from lmlab.training.distributed import lock_output
from lmlab.training.run_folder import RunFolder
from lmlab.training.train import TrainingResult, train
from lmlab.training.training_logs import NOT_FINITE, read_metrics

HELD_OUT_SPLITS = ("validation", "test")
LOCK_SECONDS = max(GRACE_SECONDS, 90.0) + 10
"""How long to wait for the lock of a dead process; NFSv4 keeps a dead machine's for 90 s."""
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

    @property
    def log(self) -> str:
        """Where its output goes if it runs in a process of its own."""
        return f"{self.out}.log"

    def plain(self) -> Task:
        """The task as an executor takes it."""
        return Task(name=self.name, function="training", payload=asdict(self), log=self.log)

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> TrainingTask:
        """The training that `plain` wrote."""
        pruning = payload["pruning"]
        plan = None if pruning is None else PruningPlan.from_record(pruning)
        return cls(**{**payload, "pruning": plan})


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

    @classmethod
    def of(cls, outcome: TaskOutcome) -> TrainingOutcome:
        """The outcome of a training that an executor brought, or of one whose process died."""
        if outcome.result:
            return cls.from_record(outcome.result)
        return cls(name=outcome.name, state=outcome.state, failure=outcome.failure)


def run_training_task(payload: Mapping[str, Any], quiet: bool) -> TaskOutcome:
    """The function of the tasks that are trainings."""
    outcome = run_training(TrainingTask.from_payload(payload), quiet=quiet)
    return TaskOutcome(
        name=outcome.name,
        state="finished" if outcome.state == "pruned" else outcome.state,
        failure=outcome.failure,
        result=asdict(outcome),
    )


def run_training(task: TrainingTask, *, quiet: bool = True) -> TrainingOutcome:
    """Train, from the last checkpoint if there is one; any error becomes a failed outcome."""
    try:
        with thread_count(task.threads):
            return _train(task, quiet)
    except KeyboardInterrupt:
        return TrainingOutcome(name=task.name, state="interrupted", threads=task.threads)
    except UserError as error:
        return _failed(task, str(error))
    except Exception as error:
        return _failed(task, unexpected_error(error, log=task.log))


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
    lock_output(run.path, wait=LOCK_SECONDS).release()
    if run.exists():
        _record_resumption(task, run)
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


def _record_resumption(task: TrainingTask, run: RunFolder) -> None:
    """Note beside the run which steps are trained again: those after the newest checkpoint."""
    lines = read_metrics(run.metrics)
    record = {
        "from_step": max(checkpoint_steps(run.checkpoints_folder), default=0),
        "reached_step": int(lines[-1]["step"]) if lines else 0,
        "host": socket.gethostname(),
        "process": os.getpid(),
    }
    path = Path(f"{task.out}.resumed.jsonl")
    with telling_disk_errors(path), open(path, "a", encoding="utf-8", opener=no_follow) as file:
        file.write(json.dumps(record) + "\n")


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
