"""The queue in front of a model: what is joined, in which order, and what becomes of errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from lmlab.core.errors import UserError
from lmlab.serve.batch_queue import BatchQueue, Job, QueueFull, run_jobs, split_batch

WAIT = 60


@dataclass(frozen=True)
class Double:
    """Doubles numbers; 0 is refused."""

    name: str = "a"
    joins: bool = True
    repeatable: bool = True

    def __call__(self, items: Sequence[int], wanted: Callable[[], bool]) -> list[int]:
        if 0 in items:
            raise UserError("0 can't be doubled.")
        return [2 * item for item in items]


def jobs(*costs: int, operation: Double | None = None) -> list[Job]:
    return [Job(operation or Double(), [cost], cost) for cost in costs]


def costs(batch: Sequence[Job]) -> list[int]:
    return [job.cost for job in batch]


def test_a_batch_is_filled_up_to_the_budget():
    """4 + 3 + 2 = 9; the 5 does not fit and comes next, though it waited longer than the 2."""
    batch, rest = split_batch(jobs(4, 3, 5, 2), budget=9)
    assert (costs(batch), costs(rest)) == ([4, 3, 2], [5])


def test_a_job_beyond_the_budget_comes_alone():
    batch, rest = split_batch(jobs(20, 1), budget=9)
    assert (costs(batch), costs(rest)) == ([20], [1])


def test_only_equal_operations_are_joined_and_none_overtakes_the_first():
    other = Double("b")
    waiting = [*jobs(1), *jobs(2, operation=other), *jobs(3), *jobs(4, operation=other)]
    batch, rest = split_batch(waiting, budget=100)
    assert (costs(batch), costs(rest)) == ([1, 3], [2, 4])
    alone = jobs(1, 2, operation=Double(joins=False))
    assert costs(split_batch(alone, budget=100)[0]) == [1]


def test_cancelled_jobs_are_dropped():
    waiting = jobs(1, 2, 3)
    waiting[0].cancel()
    batch, rest = split_batch(waiting, budget=4)
    assert (costs(batch), costs(rest)) == ([2], [3])
    assert waiting[0].future.cancelled()


def test_results_go_to_the_job_of_their_items():
    first, second = Job(Double(), [1, 2], 2), Job(Double(), [3], 1)
    run_jobs([first, second])
    assert first.future.result() == [2, 4] and second.future.result() == [6]


def test_an_error_of_one_job_is_its_own():
    good, bad = Job(Double(), [1], 1), Job(Double(), [0], 1)
    run_jobs([good, bad])
    assert good.future.result() == [2]
    with pytest.raises(UserError, match="can't be doubled"):
        bad.future.result()


def test_what_is_not_repeatable_fails_together():
    operation = Double(repeatable=False)
    together = [Job(operation, [1], 1), Job(operation, [0], 1)]
    run_jobs(together)
    assert all(isinstance(job.future.exception(), UserError) for job in together)


@dataclass(frozen=True)
class Gate:
    """Waits until it is opened; counts its calls."""

    open: threading.Event
    calls: list[list[int]]
    joins: bool = True
    repeatable: bool = True

    def __call__(self, items: Sequence[int], wanted: Callable[[], bool]) -> list[int]:
        self.calls.append(list(items))
        assert self.open.wait(WAIT)
        return list(items)


def test_jobs_that_arrive_meanwhile_are_one_batch_and_the_queue_is_bounded():
    gate, reports = Gate(threading.Event(), []), []
    queue = BatchQueue(budget=100, max_waiting=3, report=reports.append)
    first = Job(gate, [0], 1)
    queue.submit(first)
    while not gate.calls:  # until the thread has taken it
        threading.Event().wait(0.001)
    later = [Job(gate, [number], 1) for number in (1, 2, 3)]
    for job in later:
        queue.submit(job)
    assert queue.waiting == 3
    with pytest.raises(QueueFull):
        queue.submit(Job(gate, [4], 1))
    gate.open.set()
    assert [job.future.result(WAIT) for job in (first, *later)] == [[0], [1], [2], [3]]
    assert gate.calls == [[0], [1, 2, 3]]
    queue.close()
    with pytest.raises(QueueFull):
        queue.submit(Job(gate, [5], 1))
    assert [report.jobs for report in reports] == [1, 3][: len(reports)]


def test_nobody_waits_for_a_closed_queue():
    gate = Gate(threading.Event(), [])
    queue = BatchQueue(budget=1, max_waiting=9)
    running, waiting = Job(gate, [0], 1), Job(gate, [1], 1)
    queue.submit(running)
    while not gate.calls:
        threading.Event().wait(0.001)
    queue.submit(waiting)
    queue.close()
    assert waiting.future.cancelled()
    gate.open.set()
    assert running.future.result(WAIT) == [0]
