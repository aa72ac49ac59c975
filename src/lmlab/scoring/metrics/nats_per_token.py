"""Nats per token, by which rows are ranked; its differences where the tokens are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from lmlab.data.corpus import Corpus
from lmlab.scoring.comparison_records import ComparisonRow
from lmlab.scoring.metric import Column, EvaluatedRuns, Metric, PairedTest, Spread


def mean_nats(runs: EvaluatedRuns) -> float:
    """Nats per token, the mean over seeds."""
    return float(np.mean([run.summary.nats_per_token for run in runs.runs]))


def _row_notes(row: ComparisonRow) -> Iterator[str]:
    if math.isinf(row.nats_per_token):
        yield f"{row.name} gives some text probability zero, so its perplexity is infinite."
    if math.isnan(row.nats_per_token):
        yield f"{row.name} gives scores that are NaN: its training diverged."


def _notes(rows: Sequence[ComparisonRow], corpus: Corpus) -> Iterator[str]:
    if any(row["seed_std"] is not None for row in rows):
        yield "± is the standard deviation over seeds; nats are their mean, perplexity its exp."


METRIC = Metric(
    name="nats_per_token",
    explanation="nats per token are the negative log-probability over the predicted tokens",
    compute=mean_nats,
    table=Column(title="nats/token", order=30, shown=lambda rows: True),
    spread=Spread(
        name="seed_std", compute=lambda runs: runs.deviation(lambda run: run.summary.nats_per_token)
    ),
    test=PairedTest(
        totals=lambda run: -run.totals,
        counts=lambda run: run.tokens,
        quantity="nats",
        unit="token",
        applies=lambda first, second: first.tokenization == second.tokenization,
    ),
    row_notes=_row_notes,
    notes=_notes,
    in_legend=False,
)
