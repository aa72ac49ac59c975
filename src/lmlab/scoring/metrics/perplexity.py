"""Perplexity, of scores that are distributions over sequences."""

from __future__ import annotations

import math

from lmlab.core.score import NORMALISED_KINDS
from lmlab.scoring.metric import Column, EvaluatedRuns, Metric
from lmlab.scoring.metrics.nats_per_token import mean_nats

LARGE = 100_000
"""From here on it is shown with three digits."""


def _perplexity(runs: EvaluatedRuns) -> float | None:
    nats = mean_nats(runs)
    if math.isnan(nats):
        return None
    return math.exp(nats) if nats < 700 else math.inf


METRIC = Metric(
    name="perplexity",
    explanation="perplexity is the exponential of nats per token",
    compute=_perplexity,
    kinds=NORMALISED_KINDS,
    table=Column(
        title="perplexity",
        order=40,
        format=lambda value: f"{value:.2f}" if value < LARGE else f"{value:.3g}",
        shown=lambda rows: True,
    ),
    report=Column(title="perplexity", order=40, digits=2, shown=lambda rows: True),
    in_legend=False,
)
