"""Paired bootstrap tests of the differences between all rows of a comparison, corrected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from lmlab.scoring.bootstrap import interval, paired_bootstrap
from lmlab.scoring.comparison_records import ComparisonRow, Difference
from lmlab.scoring.metric import EvaluatedRuns, Metric, PairedTest
from lmlab.scoring.multiple_comparisons import Correction, corrected_p_values
from lmlab.scoring.split_evaluation import SplitEvaluation

Values = NDArray[np.float64]

FEWEST_RESAMPLES, MOST_RESAMPLES = 2000, 20_000
SMALLEST_P = 0.01
"""The smallest corrected p-value that the resamples must allow, by Bonferroni's bound."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluatedRow:
    """A row with the data its differences are computed from."""

    row: ComparisonRow
    runs: EvaluatedRuns

    def mean(self, of_run: Callable[[SplitEvaluation], NDArray[np.float64]]) -> Values:
        """(N,) numbers of each text, the mean over seeds."""
        mean: Values = np.mean([of_run(run) for run in self.runs.runs], axis=0)
        return mean


def enough_resamples(tests: int) -> int:
    """Resamples for a number of tests: p is at least 2 / (R + 1), and a correction multiplies it.

    2000 for up to ten tests, and at most 20,000, which bounds the time.
    """
    return min(max(FEWEST_RESAMPLES, math.ceil(2 * tests / SMALLEST_P)), MOST_RESAMPLES)


def paired_differences(
    entries: Sequence[EvaluatedRow],
    metrics: Sequence[Metric],
    *,
    seed: int,
    resamples: int | None,
    correction: Correction,
) -> tuple[Difference, ...]:
    """All pairs of rows of the same kind, for every metric that is tested, the better first.

    All of them are one family of tests, over which the p-values are corrected.
    """
    tested = [_TestedMetric(m, m.test, entries) for m in metrics if m.test is not None]
    planned = [
        (metric, i, j)
        for i, j in combinations(range(len(entries)), 2)
        if entries[i].row.kind == entries[j].row.kind
        for metric in tested
        if metric.tests(i, j)
    ]
    resamples = enough_resamples(len(planned)) if resamples is None else resamples
    replicates = {
        id(metric): metric.replicates(seed, resamples) for metric in {m for m, _, _ in planned}
    }
    differences = [metric.difference(i, j, replicates[id(metric)]) for metric, i, j in planned]
    corrected = corrected_p_values([entry.p_value for entry in differences], correction)
    return tuple(
        replace(entry, p_corrected=p) for entry, p in zip(differences, corrected, strict=True)
    )


def resolution_notes(tests: int, resamples: int | None, correction: Correction) -> Iterator[str]:
    """A caveat where so many tests are made that a correction leaves none significant."""
    resamples = enough_resamples(tests) if resamples is None else resamples
    smallest = 2 * tests / (resamples + 1)
    if correction in ("holm", "bonferroni") and smallest > 0.05:
        yield (
            f"With {tests} tests and {resamples} bootstrap resamples no corrected p-value can be "
            f"below {smallest:.2g}; compare fewer models, or use --correction benjamini-hochberg."
        )


class _TestedMetric:
    """A metric's paired bootstrap over the entries of which it is finite."""

    def __init__(self, metric: Metric, test: PairedTest, entries: Sequence[EvaluatedRow]) -> None:
        self.metric, self.test, self.entries = metric, test, entries
        totals = [entry.mean(test.totals) for entry in entries]
        finite = [index for index, values in enumerate(totals) if np.isfinite(values).all()]
        self.column = {index: column for column, index in enumerate(finite)}
        if finite:
            self.totals = np.stack([totals[index] for index in finite], 1)
            self.counts = np.stack([test.counts(entries[index].runs.first) for index in finite], 1)
            self.means: Values = self.totals.sum(0) / np.maximum(self.counts.sum(0), 1.0)

    def replicates(self, seed: int, resamples: int) -> Values:
        """(R, M) bootstrap replicates."""
        return paired_bootstrap(self.totals, self.counts, seed=seed, resamples=resamples)

    def tests(self, i: int, j: int) -> bool:
        """Whether the difference between two entries is tested."""
        rows = self.entries[i].row, self.entries[j].row
        return {i, j} <= self.column.keys() and self.test.applies(*rows)

    def difference(self, i: int, j: int, replicates: Values) -> Difference:
        """The difference between two entries, the better first; not corrected yet."""
        sign = -1.0 if self.metric.lower_is_better is False else 1.0
        means = self.means
        if sign * means[self.column[i]] > sign * means[self.column[j]]:
            i, j = j, i
        better, worse = self.column[i], self.column[j]
        difference = interval(replicates, float(means[better] - means[worse]), better, worse)
        return Difference(
            first=self.entries[i].row.name,
            second=self.entries[j].row.name,
            value=difference.value,
            low=difference.low,
            high=difference.high,
            p_value=difference.p_value,
            p_corrected=difference.p_value,
            quantity=self.test.quantity,
            unit=self.test.unit,
        )
