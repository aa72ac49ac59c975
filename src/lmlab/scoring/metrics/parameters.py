"""Number of parameters."""

from __future__ import annotations

from lmlab.scoring.metric import MISSING_CELL, Column, EvaluatedRuns, Metric


def _count(runs: EvaluatedRuns) -> int:
    return int(runs.first.model.system.parameter_count)


METRIC = Metric(
    name="parameters",
    explanation="parameters is the number of weights, shared ones counted once",
    compute=_count,
    lower_is_better=None,
    table=Column(title="parameters", order=10, format=lambda value: f"{value:,}"),
    report=Column(
        title="parameters", order=75, format=lambda value: f"{value:,}" if value else MISSING_CELL
    ),
    in_legend=False,
)
