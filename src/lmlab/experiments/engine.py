"""The engine that runs the tasks of an experiment: takes tasks from a source, gives them to an
executor, and records what came of them.
"""

from __future__ import annotations

from typing import Protocol

from lmlab.experiments.executors import Executor
from lmlab.experiments.tasks import Task, TaskOutcome


class TaskSource(Protocol):
    """The tasks of an experiment: which may start now, and what is known of the others."""

    def next_task(self) -> Task | None:
        """A task that may start now and was not given before; None if there is none now."""

    def record(self, outcome: TaskOutcome) -> None:
        """Take the outcome of a task; it is on disk when this returns."""


def run_tasks(source: TaskSource, executor: Executor) -> bool:
    """Run all tasks; false if they were stopped before the last one was done.

    An interrupted task is not recorded: a training continues from its checkpoint when it is given
    again, by the next call.
    """
    running, stopped = set[str](), False
    with executor:
        while True:
            while not (stopped or executor.stopping) and executor.free > 0:
                task = source.next_task()
                if task is None:
                    break
                executor.submit(task)
                running.add(task.name)
            if not running:
                return not (stopped or executor.stopping)
            for outcome in executor.wait():
                running.discard(outcome.name)
                if outcome.state == "interrupted":
                    stopped = True
                else:
                    source.record(outcome)
