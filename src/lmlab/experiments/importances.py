"""Importance of the varied settings: the share of the variance that each explains by itself.

Var(E[y | x_i]) / Var(y), the main effects of a functional ANOVA, or Sobol's first-order indices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmlab.experiments.search import KnownTrial
from lmlab.experiments.search_space import Choice, Dimension, space_size

MIN_TRIALS = 8
"""Fewer trials say too little outside a grid."""
TRIALS_PER_BIN, MAX_BINS = 5, 6
"""Ranges are divided into bins of equal numbers of trials."""
Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Importances:
    """Shares of the settings, most important first."""

    method: str
    shares: Mapping[str, float]
    interactions: float | None = None
    """The share that belongs to no single setting, where it is known."""
    explanation: str


def setting_importances(
    space: Sequence[Dimension], trials: Sequence[KnownTrial], *, lower_is_better: bool
) -> Importances | None:
    """The importance of each setting to the result of finished and pruned trials; None if they are
    too few."""
    finished = [t for t in trials if t.value is not None and math.isfinite(t.value)]
    pruned = [t for t in trials if t.value is None and t.losses]
    if len(space) < 2 or len({trial.value for trial in finished}) < 2:
        return None
    if len(finished) == space_size(space):
        return grid_effects(space, finished)
    if len(finished) + len(pruned) < MIN_TRIALS:
        return None
    return rank_effects(space, finished, pruned, lower_is_better=lower_is_better)


def grid_effects(space: Sequence[Dimension], trials: Sequence[KnownTrial]) -> Importances:
    """On a complete grid the shares are exact; the rest belongs to interactions."""
    values = np.array([trial.value for trial in trials])
    shares = {}
    for item in space:
        chosen = np.array([item.encode(trial.point[item.name]) for trial in trials])
        means = [values[chosen == one].mean() for one in np.unique(chosen)]
        shares[item.name] = float(np.var(means) / values.var())
    return Importances(
        method="ANOVA",
        shares=_sorted(shares),
        interactions=max(0.0, 1.0 - sum(shares.values())),
        explanation="share of the variance over the grid that a setting explains by itself",
    )


def rank_effects(
    space: Sequence[Dimension],
    finished: Sequence[KnownTrial],
    pruned: Sequence[KnownTrial],
    *,
    lower_is_better: bool,
) -> Importances:
    """From sampled trials the shares are estimated, of the variance of ranks, as a few diverging
    trials would be all of the variance of losses; pruned trials share the last rank."""
    sign = 1.0 if lower_is_better else -1.0
    values = [sign * float(trial.value or 0) for trial in finished]
    ranks = _ranks(np.array(values + [math.inf] * len(pruned)))
    trials = [*finished, *pruned]
    shares = {item.name: explained_share(_groups(item, trials), ranks) for item in space}
    return Importances(
        method="rank ANOVA",
        shares=_sorted(shares),
        explanation="estimated share of the variance of the trials' ranks that a setting explains "
        "by itself",
    )


def explained_share(groups: NDArray[np.int64], values: Values) -> float:
    """Kelley's ε² (1935): the share of the variance between groups, corrected for what as many
    random groups would explain, 1 - [SSW / (n - k)] / [SST / (n - 1)], at least 0."""
    numbers = np.unique(groups)
    total = float(((values - values.mean()) ** 2).sum())
    within = sum(
        float(((values[groups == one] - values[groups == one].mean()) ** 2).sum())
        for one in numbers
    )
    freedom = len(values) - len(numbers)
    if freedom <= 0 or total == 0:
        return 0.0
    return max(0.0, 1.0 - (within / freedom) / (total / (len(values) - 1)))


def _groups(item: Dimension, trials: Sequence[KnownTrial]) -> NDArray[np.int64]:
    """The group of each trial: its value, or a bin of the range with as many trials as others."""
    values = np.array([item.encode(trial.point[item.name]) for trial in trials], dtype=np.float64)
    if isinstance(item, Choice):
        return values.astype(np.int64)
    bins = min(MAX_BINS, max(2, len(trials) // TRIALS_PER_BIN))
    edges = np.quantile(values, np.arange(1, bins) / bins)
    return np.searchsorted(edges, values, side="left")


def _ranks(values: Values) -> Values:
    """Ranks from 0; equal values share the mean of theirs."""
    below = (values[None, :] < values[:, None]).sum(1)
    equal = (values[None, :] == values[:, None]).sum(1)
    ranks: Values = below + (equal - 1) / 2
    return ranks


def _sorted(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
