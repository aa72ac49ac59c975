"""A queue in front of a model: what many clients ask for is done in batches by one thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmlab.core.errors import UserError


class Operation(Protocol):
    """What is done with the items of jobs; equal operations are done together."""

    @property
    def joins(self) -> bool:
        """Whether the items of several jobs may be done in one call."""

    @property
    def repeatable(self) -> bool:
        """Whether jobs are tried one by one where they fail together."""

    def __call__(self, items: Sequence[Any], wanted: Callable[[], bool]) -> Sequence[Any]:
        """A result for each item; it may raise `Abandoned` where nobody wants one any more."""


class QueueFull(Exception):
    """Too many jobs wait."""


class Abandoned(Exception):
    """Nobody waits for the result any more."""


@dataclass(eq=False)
class Job:
    """Items of one request, and the future that gets their results."""

    operation: Operation
    items: Sequence[Any]
    cost: int
    """Tokens, at least about."""
    future: Future[list[Any]] = field(default_factory=Future)
    cancelled: bool = False

    def cancel(self) -> None:
        """Nobody waits for it: it is skipped, or stopped as soon as it can be."""
        self.cancelled = True
        self.future.cancel()

    def finish(self, results: list[Any] | None, error: BaseException | None = None) -> None:
        """Hand over the results or the error, if anybody still waits."""
        try:
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(results or [])
        except InvalidStateError:
            pass  # cancelled meanwhile


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """A batch that was done."""

    jobs: int
    cost: int
    seconds: float


class BatchQueue:
    """One thread that does jobs in their order, joining equal operations up to a token budget."""

    def __init__(
        self,
        *,
        budget: int,
        max_waiting: int,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self.budget, self.max_waiting, self.report = budget, max_waiting, report
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Jobs that no batch has taken yet."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Append a job; raises `QueueFull` instead of letting more wait than allowed."""
        with self._changed:
            if len(self._waiting) >= self.max_waiting or self._closed:
                raise QueueFull
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="model", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Cancel what waits; the thread ends after its batch."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job.cancel()
            self._waiting.clear()
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next_batch():
            start = time.perf_counter()
            run_jobs(batch)
            cost = sum(job.cost for job in batch)
            self.report(
                BatchReport(jobs=len(batch), cost=cost, seconds=time.perf_counter() - start)
            )

    def _next_batch(self) -> list[Job]:
        """Wait for jobs, and take the next batch; empty once the queue is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            batch, rest = split_batch(self._waiting, self.budget)
            self._waiting = deque(rest)
            return batch


def split_batch(waiting: Iterable[Job], budget: int) -> tuple[list[Job], list[Job]]:
    """The first job with all that can be joined to it within the budget, and the others in order.

    Cancelled jobs are dropped. A job beyond the budget comes alone.
    """
    batch: list[Job] = []
    rest: list[Job] = []
    cost = 0
    for job in waiting:
        if job.cancelled:
            continue
        joins = batch and job.operation.joins and job.operation == batch[0].operation
        if not batch or (joins and cost + job.cost <= budget):
            batch.append(job)
            cost += job.cost
        else:
            rest.append(job)
    return batch, rest


def run_jobs(jobs: Sequence[Job]) -> None:
    """Do jobs of equal operations together; if that fails by one of them, one by one."""
    operation = jobs[0].operation
    items = [item for job in jobs for item in job.items]

    def wanted() -> bool:
        return not all(job.cancelled for job in jobs)

    try:
        results = list(operation(items, wanted))
    except UserError as error:
        if len(jobs) > 1 and operation.repeatable:
            for job in jobs:
                run_jobs([job])
            return
        _fail(jobs, error)
    except BaseException as error:
        _fail(jobs, error)
    else:
        first = 0
        for job in jobs:
            job.finish(results[first : first + len(job.items)])
            first += len(job.items)


def _fail(jobs: Sequence[Job], error: BaseException) -> None:
    for job in jobs:
        job.finish(None, error)
