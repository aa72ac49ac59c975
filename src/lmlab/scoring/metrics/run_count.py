"""Number of runs in a row, which differ in their seeds."""

from __future__ import annotations

from lmlab.scoring.metric import Column, Metric

METRIC = Metric(
    name="run_count",
    explanation="seeds is the number of runs that differ in their random seed alone",
    compute=lambda runs: len(runs.runs),
    lower_is_better=None,
    table=Column(
        title="seeds", order=20, digits=0, shown=lambda rows: any(len(row.runs) > 1 for row in rows)
    ),
    # The report has it after the name.
    report=Column(title="seeds", order=20, shown=lambda rows: False),
    recorded=False,
    in_legend=False,
)
