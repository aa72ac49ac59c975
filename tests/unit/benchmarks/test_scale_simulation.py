"""The simulation of many tasks equals closed forms where there are some."""

from __future__ import annotations

import math

import pytest
from benchmarks.scale_simulation import Scenario, simulate


@pytest.mark.parametrize(("tasks", "workers"), [(1, 1), (10, 4), (8, 4), (3, 5)])
def test_without_failures_the_makespan_is_that_of_full_rounds(tasks: int, workers: int):
    result = simulate(Scenario(tasks=tasks, workers=workers, task_seconds=7.0))
    assert result.makespan == pytest.approx(math.ceil(tasks / workers) * 7.0)
    assert result.utilisation == pytest.approx(tasks * 7.0 / (workers * result.makespan))
    assert result.failures == result.repeated_seconds == result.storage_share == 0


def test_shared_storage_serves_all_writers_at_the_same_rate():
    """4 workers compute for 10 s and write 5 bytes each at 2 bytes/s together, three times."""
    scenario = Scenario(
        tasks=4,
        workers=4,
        task_seconds=30.0,
        checkpoint_seconds=10.0,
        checkpoint_bytes=5.0,
        bandwidth=2.0,
    )
    result = simulate(scenario)
    assert result.makespan == pytest.approx(3 * (10.0 + 4 * 5.0 / 2.0))
    assert result.storage_share == pytest.approx(0.5)


def test_expected_restarts_and_time_under_failures():
    """A segment of c seconds under failures at rate r: exp(rc) - 1 restarts and (exp(rc) - 1) / r
    seconds are expected (the number of restarts is geometric)."""
    segments, rate = 4000, 0.5
    scenario = Scenario(
        tasks=1,
        workers=1,
        task_seconds=float(segments),
        checkpoint_seconds=1.0,
        mtbf_seconds=1 / rate,
    )
    result = simulate(scenario)
    expected, success = math.expm1(rate), math.exp(-rate)
    error = 4 * math.sqrt((1 - success) / success**2 / segments)
    assert result.failures / segments == pytest.approx(expected, abs=error)
    assert result.makespan / segments == pytest.approx(expected / rate, abs=error / rate)
    assert result.makespan == pytest.approx(segments + result.repeated_seconds)


def test_stragglers_and_the_driver():
    slow = Scenario(tasks=6, workers=3, task_seconds=2.0, straggler_share=1.0, straggler_factor=5.0)
    assert simulate(slow).makespan == pytest.approx(2 * 10.0)
    handed_out = Scenario(tasks=3, workers=3, task_seconds=2.0, driver_seconds=1.0)
    assert simulate(handed_out).makespan == pytest.approx(3 * 1.0 + 2.0)
