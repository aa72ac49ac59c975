"""Regret: nats per token above those of the true distribution, up to sampling error."""

from __future__ import annotations

from lmlab.core.score import NORMALISED_KINDS
from lmlab.scoring.metric import Column, EvaluatedRuns, Metric
from lmlab.scoring.metrics.floor import true_nats
from lmlab.scoring.metrics.nats_per_token import mean_nats


def _regret(runs: EvaluatedRuns) -> float | None:
    floor = true_nats(runs)
    return None if floor is None else mean_nats(runs) - floor


METRIC = Metric(
    name="regret",
    explanation="regret is the loss above what the true distribution itself gives on the same "
    "texts",
    compute=_regret,
    # A score that is no log-probability may lie below the entropy.
    kinds=NORMALISED_KINDS,
    table=Column(
        title="regret", order=70, shown=lambda rows: any(row["floor"] is not None for row in rows)
    ),
)
