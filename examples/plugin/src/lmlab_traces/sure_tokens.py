"""Sure tokens: the share of tokens that a model gives a probability above one half."""

from __future__ import annotations

import math

import numpy as np

from lmlab.core.score import Score
from lmlab.scoring.metric import Column, EvaluatedRuns, Metric


def sure_share(score: Score) -> float:
    """The share of one text's tokens with p > 1/2."""
    return float(np.mean([token.log_prob > math.log(0.5) for token in score.per_token]))


def mean_share(runs: EvaluatedRuns) -> float | None:
    """The mean over texts, then over the seeds of a row."""
    return runs.mean(lambda run: float(run.per_text["sure_tokens"].mean()))


METRIC = Metric(
    name="sure_tokens",
    explanation="sure is the share of a text's tokens with a probability above one half",
    compute=mean_share,
    kinds=frozenset({"exact"}),
    per_text=sure_share,
    reads_tokens=True,
    lower_is_better=False,
    table=Column(title="sure", order=105, format=lambda value: f"{value:.1%}"),
)
