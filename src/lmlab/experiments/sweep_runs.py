"""The trainings of a sweep: which may start when, so that results do not depend on timing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Protocol

from lmlab.core.atomic_files import write_json
from lmlab.experiments.engine import run_tasks
from lmlab.experiments.executors import Executor, remove_if_empty
from lmlab.experiments.pruning import EarlierTraining, PruningPlan
from lmlab.experiments.search import KnownTrial
from lmlab.experiments.search_space import Point
from lmlab.experiments.sweep_plan import SweepPlan
from lmlab.experiments.sweep_records import (
    RECORD_FILE,
    RECORD_FORMAT,
    SweepLog,
    check_same_plan,
    read_log,
)
from lmlab.experiments.sweep_results import (
    Sweep,
    Trial,
    known_trial,
    summarise_sweep,
    training_name,
    trial_result,
)
from lmlab.experiments.tasks import Task, TaskOutcome
from lmlab.experiments.training_tasks import TrainingOutcome, TrainingTask

LISTED_TRIALS = 20
"""Trials that a dry run lists where their number is not known."""


class SweepProgress(Protocol):
    """Shows how a sweep comes along."""

    def begin(self, *, trainings: float, done: int, trials: Iterable[Trial]) -> None:
        """The planned number of trainings, how many were done before, and the trials decided."""

    def started(self, task: TrainingTask, trial: Trial) -> None:
        """A training has started."""

    def ended(self, outcome: TrainingOutcome, trial: Trial) -> None:
        """A training has ended, as part of a trial."""


def run_sweep(
    plan: SweepPlan,
    out: Path,
    *,
    executor: Executor,
    progress: SweepProgress,
    retry_failed: bool = False,
) -> Sweep:
    """Train what is missing. The caller holds the lock of the folder."""
    check_same_plan(plan, out)
    log = read_log(plan, out)
    log.rewrite(without_failed=retry_failed)
    write_sweep(plan, summarise_sweep(plan, log, finished=False))
    source = SweepSource(plan, log, progress)
    try:
        finished = run_tasks(source, executor)
    finally:
        remove_if_empty(log.runs)
    sweep = summarise_sweep(plan, log, finished=finished)
    write_sweep(plan, sweep)
    return sweep


def write_sweep(plan: SweepPlan, sweep: Sweep) -> None:
    """Write sweep.json: the plan and the results."""
    record = {"format": RECORD_FORMAT, "spec": plan.record(), **sweep.as_dict()}
    write_json(sweep.path / RECORD_FILE, record)


def list_trials(plan: SweepPlan, out: Path) -> Sweep:
    """What a sweep would train, without training: the trials known so far, and those to come as
    far as they do not depend on results."""
    check_same_plan(plan, out)
    log = read_log(plan, out)
    known = [KnownTrial(point=p, value=None, running=True) for p in log.points.values()]
    if plan.search.adaptive:
        limit = min(plan.trials, max(len(known), plan.spec.concurrency))
    else:
        limit = len(known) + LISTED_TRIALS if math.isinf(plan.trials) else plan.trials
    while len(known) < limit:
        point = plan.search.propose(len(known), known)
        if point is None:
            break
        known.append(KnownTrial(point=point, value=None, running=True))
    planned = {number: trial.point for number, trial in enumerate(known)}
    sweep = summarise_sweep(plan, log, planned=planned, finished=False)
    if plan.search.adaptive and len(known) < plan.trials:
        sweep = replace(sweep, notes=(*sweep.notes, "The other trials depend on results."))
    return sweep


class SweepSource:
    """The trainings of a sweep in order.

    Where a trial depends on others (TPE, pruning), trial n starts when all up to n - concurrency
    are decided, and knows these alone, though others may have ended by chance. Without that, the
    results would depend on the number of jobs.
    """

    def __init__(self, plan: SweepPlan, log: SweepLog, progress: SweepProgress) -> None:
        self._plan = plan
        self._log = log
        self._progress = progress
        self._begun_at = time.perf_counter() - log.seconds
        self._given: dict[str, int] = {}
        """Trials of the trainings given in this session."""
        self._decided: dict[int, Trial] = {}
        for number in log.points:
            self._decide(number)
        trainings = plan.trials * len(plan.spec.seeds)
        progress.begin(trainings=trainings, done=len(log.outcomes), trials=self._decided.values())

    def next_task(self) -> Task | None:
        for number in self._open_trials():
            point = self._point(number)
            if point is None or not self._may_start(number, depends=self._plan.sequential):
                return None
            for name, seed in self._missing(number):
                task = self._plan.task(name, self._log.runs / name, point, seed)
                if self._plan.spec.prune is not None and seed == self._plan.spec.seeds[0]:
                    task = self._with_pruning(task, number)
                self._given[name] = number
                self._progress.started(task, trial_result(self._plan, self._log, number))
                return task.plain()
        return None

    def record(self, plain: TaskOutcome) -> None:
        outcome = TrainingOutcome.of(plain)
        number = self._given[outcome.name]
        self._tick()
        self._log.add_outcome(outcome)
        self._decide(number)
        self._progress.ended(outcome, trial_result(self._plan, self._log, number))

    def _open_trials(self) -> Iterator[int]:
        return (number for number in count() if number not in self._decided)

    def _tick(self) -> None:
        self._log.seconds = time.perf_counter() - self._begun_at

    def _decide(self, number: int) -> None:
        trial = trial_result(self._plan, self._log, number)
        if trial.state in ("finished", "pruned", "failed"):
            self._decided[number] = trial

    def _may_start(self, number: int, *, depends: bool) -> bool:
        return not depends or all(earlier in self._decided for earlier in self._before(number))

    def _before(self, number: int) -> range:
        """The trials that a trial knows the results of."""
        return range(max(0, number - self._plan.spec.concurrency + 1))

    def _point(self, number: int) -> Point | None:
        """The point of a trial, proposed and recorded if it is new; None if it can't begin."""
        if number in self._log.points:
            return self._log.points[number]
        self._tick()
        hours = self._plan.spec.hours
        out_of_time = hours is not None and self._log.seconds >= 3600 * hours
        depends = self._plan.sequential
        if (
            out_of_time
            or number >= self._plan.trials
            or not self._may_start(number, depends=depends)
        ):
            return None
        point = self._plan.search.propose(number, self._known(number))
        if point is not None:
            self._log.add_point(number, point)
        return point

    def _known(self, number: int) -> list[KnownTrial]:
        before = self._before(number)
        return [
            known_trial(self._decided[earlier])
            if self._plan.search.adaptive and earlier in before
            else KnownTrial(point=self._log.points[earlier], value=None, running=True)
            for earlier in range(number)
        ]

    def _missing(self, number: int) -> Iterator[tuple[str, int]]:
        """Trainings of a trial that may start now. If hopeless trials are pruned, the first seed
        decides whether the others are trained."""
        names = {training_name(number, seed): seed for seed in self._plan.spec.seeds}
        first = next(iter(names))
        if self._plan.spec.prune is not None and first not in self._log.outcomes:
            names = {first: names[first]}
        for name, seed in names.items():
            if name not in self._log.outcomes and name not in self._given:
                yield name, seed

    def _with_pruning(self, task: TrainingTask, number: int) -> TrainingTask:
        assert self._plan.spec.prune is not None
        earlier = tuple(
            EarlierTraining(losses=trial.losses, pruned=trial.state == "pruned")
            for trial in map(self._decided.__getitem__, self._before(number))
            if trial.losses
        )
        return replace(task, pruning=PruningPlan(options=self._plan.spec.prune, earlier=earlier))
