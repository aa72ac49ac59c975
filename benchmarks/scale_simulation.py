"""Discrete-event simulation of many tasks on many workers: failures, stragglers, shared storage.

    python benchmarks/scale_simulation.py --tasks 1000 --workers 100 --hours 1 --mtbf-hours 500

A task computes for a while and writes a checkpoint after every so many seconds. All workers share
the bandwidth of the storage (processor sharing), and a checkpoint blocks its task until it is
written. A worker fails after an exponentially distributed time; its task goes on from the last
checkpoint, at once, on a worker that replaces it. A driver hands the tasks out one by one.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated; times in seconds, sizes in bytes."""

    tasks: int
    workers: int
    task_seconds: float
    checkpoint_seconds: float = math.inf
    """Computing between two checkpoints."""
    checkpoint_bytes: float = 0.0
    bandwidth: float = math.inf
    """Of the storage, for all workers together, in bytes per second."""
    mtbf_seconds: float = math.inf
    """Mean time between failures of one worker."""
    straggler_share: float = 0.0
    """The share of tasks that are slow …"""
    straggler_factor: float = 1.0
    """… by this factor."""
    driver_seconds: float = 0.0
    """What the driver takes to hand out one task."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of it."""

    makespan: float
    failures: int
    repeated_seconds: float
    """Computing that was lost and done again."""
    storage_share: float
    """The share of all workers' time that went into writing checkpoints."""
    utilisation: float
    """The share that went into computing that was kept."""


@dataclass
class _Running:
    remaining: float
    slowness: float
    phase_started: float = 0.0


def simulate(scenario: Scenario) -> Result:
    """Run all tasks to their end."""
    return _Simulation(scenario).run()


class _Simulation:
    """One worker is in one of two phases: it computes (a timed event) or it writes (shared)."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.random = scenario, random.Random(scenario.seed)
        self.now = self.driver_free = 0.0
        self.waiting = scenario.tasks
        self.events: list[tuple[float, int, int, str]] = []
        self.version = [0] * scenario.workers
        """Counts the phases of each worker, so that events of an earlier one are passed over."""
        self.running: dict[int, _Running] = {}
        self.writing: dict[int, float] = {}
        """Bytes that each writing worker has left."""
        self.failures, self.repeated, self.write_time, self.useful = 0, 0.0, 0.0, 0.0

    def run(self) -> Result:
        for worker in range(min(self.scenario.workers, self.scenario.tasks)):
            self._start(worker)
        while self.running:
            time, worker, event = self._next_event()
            self._advance(time)
            if event == "written":
                self._written(worker)
            elif event == "failed":
                self._failed(worker)
            else:
                self._computed(worker)
        total = self.now * self.scenario.workers
        return Result(
            makespan=self.now,
            failures=self.failures,
            repeated_seconds=self.repeated,
            storage_share=self.write_time / total,
            utilisation=self.useful / total,
        )

    def _next_event(self) -> tuple[float, int, str]:
        while self.events and self.events[0][2] != self.version[self.events[0][1]]:
            heapq.heappop(self.events)
        time, worker, event = math.inf, -1, ""
        if self.writing:
            first = min(self.writing, key=self.writing.__getitem__)
            share = self.scenario.bandwidth / len(self.writing)
            time, worker, event = self.now + self.writing[first] / share, first, "written"
        if self.events and self.events[0][0] < time:
            time, worker, _, event = heapq.heappop(self.events)
        return time, worker, event

    def _advance(self, time: float) -> None:
        if self.writing:
            written = (time - self.now) * self.scenario.bandwidth / len(self.writing)
            self.write_time += (time - self.now) * len(self.writing)
            for worker in self.writing:
                self.writing[worker] -= written
        self.now = time

    def _start(self, worker: int) -> None:
        self.waiting -= 1
        slow = self.random.random() < self.scenario.straggler_share
        slowness = self.scenario.straggler_factor if slow else 1.0
        self.running[worker] = _Running(self.scenario.task_seconds, slowness)
        self.driver_free = max(self.now, self.driver_free) + self.scenario.driver_seconds
        self._compute(worker, at=self.driver_free)

    def _compute(self, worker: int, *, at: float) -> None:
        task = self.running[worker]
        task.phase_started = at
        span = min(task.remaining, self.scenario.checkpoint_seconds)
        self._plan(worker, at, at + span * task.slowness, "computed")

    def _plan(self, worker: int, start: float, end: float, event: str) -> None:
        """The next event of a worker: the end of its phase, or its failure if that is earlier.

        Exponential times have no memory, so that one may be drawn anew for every phase.
        """
        self.version[worker] += 1
        if math.isfinite(self.scenario.mtbf_seconds):
            failure = start + self.random.expovariate(1 / self.scenario.mtbf_seconds)
            if failure < end:
                end, event = failure, "failed"
        if math.isfinite(end):
            heapq.heappush(self.events, (end, worker, self.version[worker], event))

    def _computed(self, worker: int) -> None:
        if self.scenario.checkpoint_bytes and math.isfinite(self.scenario.bandwidth):
            self.writing[worker] = self.scenario.checkpoint_bytes
            self._plan(worker, self.now, math.inf, "")
        else:
            self._written(worker)

    def _written(self, worker: int) -> None:
        task = self.running[worker]
        self.writing.pop(worker, None)
        self.version[worker] += 1
        span = min(task.remaining, self.scenario.checkpoint_seconds)
        self.useful += span * task.slowness
        task.remaining -= span
        if task.remaining > 0:
            self._compute(worker, at=self.now)
        elif self.waiting:
            self._start(worker)
        else:
            del self.running[worker]

    def _failed(self, worker: int) -> None:
        """What was computed since the last checkpoint is done again."""
        self.failures += 1
        self.writing.pop(worker, None)
        self.repeated += self.now - self.running[worker].phase_started
        self._compute(worker, at=self.now)


def main() -> None:
    """Print one scenario's result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--hours", type=float, default=1.0, help="of one task")
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0)
    parser.add_argument("--checkpoint-gigabytes", type=float, default=1.5)
    parser.add_argument("--bandwidth", type=float, default=1.0, help="gigabytes per second, shared")
    parser.add_argument("--mtbf-hours", type=float, default=math.inf, help="of one worker")
    parser.add_argument("--stragglers", type=float, default=0.0, help="share of slow tasks")
    parser.add_argument("--slowness", type=float, default=3.0, help="of a slow task")
    parser.add_argument("--driver-seconds", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    scenario = Scenario(
        tasks=given.tasks,
        workers=given.workers,
        task_seconds=3600 * given.hours,
        checkpoint_seconds=60 * given.checkpoint_minutes,
        checkpoint_bytes=1e9 * given.checkpoint_gigabytes,
        bandwidth=1e9 * given.bandwidth,
        mtbf_seconds=3600 * given.mtbf_hours,
        straggler_share=given.stragglers,
        straggler_factor=given.slowness,
        driver_seconds=given.driver_seconds,
        seed=given.seed,
    )
    print(json.dumps({"scenario": asdict(scenario), "result": asdict(simulate(scenario))}))


if __name__ == "__main__":
    main()
