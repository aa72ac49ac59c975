"""Task metrics with 95 % confidence intervals (Wilson, bootstrap), and majority-class warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmlab.scoring.bootstrap import paired_bootstrap
from lmlab.tasks.sequence_task import SequenceTask

Z = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""
ROW_RESAMPLES = 1000
MAX_RESAMPLED_ROWS = 1_000_000
"""Maximum rows over all bootstrap resamples; many rows get fewer resamples."""
MIN_RESAMPLES = 200
METRICS_WITHOUT_INTERVAL = ("majority", "bleu")
"""A baseline, and a metric whose interval `lmlab evaluate` gives by sacreBLEU's own bootstrap."""

IntervalBounds = tuple[float, float]
MetricFunction = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class TaskMetrics:
    """The metrics of some answers."""

    metrics: Mapping[str, float]
    intervals: Mapping[str, IntervalBounds]
    """95 % confidence intervals, by metric."""
    warnings: tuple[str, ...]
    """Warnings for the user: the model is not better than the majority class."""

    def extended(self, metrics: Mapping[str, float]) -> TaskMetrics:
        """With further metrics, without intervals."""
        return replace(self, metrics={**self.metrics, **metrics})


def measure_answers(
    task: SequenceTask | type[SequenceTask], expected: Sequence[Any], answers: Sequence[Any]
) -> TaskMetrics:
    """A task's metrics of answers, with confidence intervals over rows.

    Proportions of rows have Wilson's interval, all others a bootstrap interval over rows: of the
    mean if a metric is one, else of the metric itself.
    """
    metrics = task.compute_metrics(expected, answers)
    intervals = {
        name: wilson_interval(round(metrics[name] * len(expected)), len(expected))
        for name in task.proportion_metrics
        if name in metrics
    }
    intervals |= bootstrap_mean_intervals(task, expected, answers)
    others = [name for name in metrics if name not in (*intervals, *METRICS_WITHOUT_INTERVAL)]
    intervals |= bootstrap_intervals(task.compute_metrics, expected, answers, others)
    return TaskMetrics(
        metrics=metrics, intervals=intervals, warnings=majority_warnings(metrics, intervals)
    )


def wilson_interval(correct: int, total: int) -> IntervalBounds:
    """Wilson's (1927) score interval of a proportion, correct / total.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n); from 0 to 1 if total is 0.
    """
    if not total:
        return 0.0, 1.0
    proportion, squared = correct / total, Z * Z / total
    centre = proportion + squared / 2
    spread = Z * math.sqrt(proportion * (1 - proportion) / total + squared / total / 4)
    low, high = (centre - spread) / (1 + squared), (centre + spread) / (1 + squared)
    return low if correct else 0.0, high if correct < total else 1.0  # exact at the ends


def bootstrap_mean_intervals(
    task: SequenceTask | type[SequenceTask], expected: Sequence[Any], answers: Sequence[Any]
) -> dict[str, IntervalBounds]:
    """`bootstrap_intervals` of metrics that are means over rows, each row evaluated once."""
    if not task.mean_metrics or not expected:
        return {}
    rows = [task.compute_metrics([a], [b]) for a, b in zip(expected, answers, strict=True)]
    values = np.array([[row[name] for name in task.mean_metrics] for row in rows])
    ends = np.quantile(paired_bootstrap(values, np.ones_like(values)), [0.025, 0.975], axis=0)
    return {
        name: (float(low), float(high))
        for name, (low, high) in zip(task.mean_metrics, ends.T, strict=True)
    }


def bootstrap_intervals(
    metric: MetricFunction,
    expected: Sequence[Any],
    answers: Sequence[Any],
    names: Sequence[str],
    *,
    seed: int = 0,
) -> dict[str, IntervalBounds]:
    """Percentile bootstrap: the middle 95 % of metrics over rows resampled with replacement."""
    count = len(expected)
    if not names or not count:
        return {}
    generator = np.random.default_rng(seed)
    values: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(max(MIN_RESAMPLES, min(ROW_RESAMPLES, MAX_RESAMPLED_ROWS // count))):
        rows = generator.integers(0, count, count)
        metrics = metric([expected[row] for row in rows], [answers[row] for row in rows])
        for name in names:
            values[name].append(metrics[name])
    ends = {name: np.quantile(resampled, [0.025, 0.975]) for name, resampled in values.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def majority_warnings(
    metrics: Mapping[str, float], intervals: Mapping[str, IntervalBounds]
) -> tuple[str, ...]:
    """A warning if the accuracy is below, or not clearly above, that of the majority class."""
    if "accuracy" not in metrics or "majority" not in metrics:
        return ()
    accuracy, majority = metrics["accuracy"], metrics["majority"]
    if accuracy < majority:
        return (
            f"the accuracy, {accuracy:.3f}, is below that of the majority class, {majority:.3f}: "
            "always giving the most frequent label would be better.",
        )
    if intervals["accuracy"][0] <= majority:
        return (
            f"the accuracy, {accuracy:.3f}, is not clearly better than that of the majority class, "
            f"{majority:.3f}, which its 95 % interval contains.",
        )
    return ()
