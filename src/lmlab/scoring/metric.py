"""Metrics: what `lmlab compare` reports of each model. A file of `metrics/` declares one, METRIC.

A metric is computed from the scores of a row's runs, and declares how it is shown, recorded,
explained and tested. The tables, the report and the JSON output read these records, so a new
column is one file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmlab.core.score import SCORE_KINDS, Convention, Score, ScoreKind
from lmlab.data.corpus import Corpus
from lmlab.scoring.split_evaluation import SplitEvaluation

if TYPE_CHECKING:
    from lmlab.scoring.comparison_records import ComparisonRow

Number = int | float
MISSING_CELL = "–"
"""What a table shows where there is no value."""


@dataclass(frozen=True, kw_only=True)
class TrueScores:
    """Scores of the true distribution on the split."""

    nats: float
    """- Σ log p_true over the texts."""
    texts: int
    characters: int
    utf8_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluatedRuns:
    """What a row is computed from: runs that differ in their seed at most."""

    runs: Sequence[SplitEvaluation]
    truth: TrueScores | None = None
    """None where the true distribution is unknown, or gives some text probability zero."""

    @property
    def first(self) -> SplitEvaluation:
        """The first run."""
        return self.runs[0]

    @property
    def kind(self) -> ScoreKind:
        """The kind of score."""
        return self.first.summary.kind

    @property
    def convention(self) -> Convention:
        """The scoring convention."""
        return self.first.summary.convention

    def mean(self, of_run: Callable[[SplitEvaluation], float | None]) -> float | None:
        """The mean over runs; None where it is undefined for all of them."""
        values = [value for run in self.runs if (value := of_run(run)) is not None]
        return float(np.mean(values)) if values else None

    def deviation(self, of_run: Callable[[SplitEvaluation], float]) -> float | None:
        """The standard deviation over runs (n - 1); None for a single run."""
        values = [of_run(run) for run in self.runs]
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return None
        return float(np.std(values, ddof=1))


@dataclass(frozen=True, kw_only=True)
class Column:
    """How a metric is shown in a table."""

    title: str
    """The heading, with the unit."""
    order: int
    """Columns are sorted by this number; those of lmlab have multiples of 10."""
    digits: int = 4
    """Decimals."""
    format: Callable[[float], str] | None = None
    """The text of a finite value, if not by `digits`; `MISSING_CELL` shows it as no value."""
    shown: Callable[[Sequence[ComparisonRow]], bool] | None = None
    """Whether the table has the column; by default if any row has a value."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The spread of a metric over seeds, shown after its value with ±."""

    name: str
    """Its name in JSON."""
    compute: Callable[[EvaluatedRuns], float | None]


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """How differences of a metric are tested: the metric is Σ totals / Σ counts over the texts,
    and its difference is bootstrapped over texts, the same ones for both models."""

    totals: Callable[[SplitEvaluation], NDArray[np.float64]]
    """(N,) the numerator of each text."""
    counts: Callable[[SplitEvaluation], NDArray[np.float64]]
    """(N,) the denominator of each text."""
    quantity: str
    """What is subtracted, as JSON names it: nats, or the metric's name."""
    unit: str
    """What it is divided by: token, character, text."""
    applies: Callable[[ComparisonRow, ComparisonRow], bool] = lambda first, second: True
    """Whether two rows of the same kind of score are tested; by default all are."""


def no_row_notes(row: ComparisonRow) -> Iterable[str]:
    """No caveats."""
    return ()


def no_notes(rows: Sequence[ComparisonRow], corpus: Corpus) -> Iterable[str]:
    """No caveats."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure of a model: how it is computed, shown, explained and tested."""

    name: str
    """Its name in JSON and in `row[name]`."""
    explanation: str
    """What it is, as a clause: 'regret is the loss above …'."""
    compute: Callable[[EvaluatedRuns], Number | None]
    """The value of a row; None where it is undefined."""
    kinds: frozenset[ScoreKind] = frozenset(SCORE_KINDS)
    """Kinds of score that it is defined for."""
    applies: Callable[[EvaluatedRuns], bool] = lambda runs: True
    """Systems, data and conventions that it is defined for; by default all."""
    per_text: Callable[[Score], float] | None = None
    """Measured of each text when it is scored, for `compute`: see `SplitEvaluation.per_text`."""
    reads_tokens: bool = False
    """Whether `per_text` reads the scores of tokens, which are only kept if asked for."""
    lower_is_better: bool | None = True
    """None where neither is better."""
    table: Column
    report: Column | None = None
    """How it is shown in the HTML report, if not as in the table."""
    recorded: bool = True
    """Whether JSON has it; not if it follows from what else is there."""
    in_legend: bool = True
    """Whether the report ends with its explanation."""
    spread: Spread | None = None
    test: PairedTest | None = None
    """How differences are tested, if they are."""
    row_notes: Callable[[ComparisonRow], Iterable[str]] = no_row_notes
    """Caveats of one row, each a sentence."""
    notes: Callable[[Sequence[ComparisonRow], Corpus], Iterable[str]] = no_notes
    """Caveats of the comparison, each a sentence."""

    @property
    def report_column(self) -> Column:
        """How it is shown in the report."""
        return self.report or self.table

    def is_shown(self, column: Column, rows: Sequence[ComparisonRow]) -> bool:
        """Whether a table of these rows has the column."""
        if column.shown is not None:
            return column.shown(rows)
        return any(row.values.get(self.name) is not None for row in rows)

    def value(self, runs: EvaluatedRuns) -> Number | None:
        """The value of a row, None where the metric is not defined for it."""
        if runs.kind not in self.kinds or not self.applies(runs):
            return None
        return self.compute(runs)
