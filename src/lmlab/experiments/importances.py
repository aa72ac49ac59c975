"""Importance of the varied settings: by functional ANOVA on a complete grid, else by PED-ANOVA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lmlab.experiments.optuna_study import new_study, optuna_is_installed
from lmlab.experiments.search import KnownTrial, tell_study
from lmlab.experiments.search_space import Dimension, space_size

MIN_TRIALS = 8
"""Fewer trials say too little outside a grid."""
MIN_BEST = 4
"""Trials that count as the best at least."""


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
    """The importance of each setting to the value of finished trials; None if they are too few."""
    trials = [t for t in trials if t.value is not None and math.isfinite(t.value)]
    if len(space) < 2 or len({trial.value for trial in trials}) < 2:
        return None
    if len(trials) == space_size(space):
        return main_effects(space, trials)
    if len(trials) < MIN_TRIALS or not optuna_is_installed():
        return None
    return ped_anova(space, trials, lower_is_better=lower_is_better)


def main_effects(space: Sequence[Dimension], trials: Sequence[KnownTrial]) -> Importances:
    """Functional ANOVA on a complete grid, exact: the share of setting i is the variance of its
    conditional means, Var_i(E[y | x_i]) / Var(y); the rest belongs to interactions."""
    values = np.array([trial.value for trial in trials])
    total = float(values.var())
    shares = {}
    for item in space:
        chosen = np.array([item.encode(trial.point[item.name]) for trial in trials])
        means = [values[chosen == one].mean() for one in np.unique(chosen)]
        shares[item.name] = float(np.var(means)) / total
    return Importances(
        method="ANOVA",
        shares=_sorted(shares),
        interactions=max(0.0, 1.0 - sum(shares.values())),
        explanation="share of the variance over the grid that a setting explains by itself",
    )


def ped_anova(
    space: Sequence[Dimension], trials: Sequence[KnownTrial], *, lower_is_better: bool
) -> Importances:
    """PED-ANOVA (Watanabe, Bansal and Hutter 2023): how much the values of a setting among the best
    trials differ from those among all, as the Pearson divergence of two density estimates. It
    corrects for where a search went, and needs no surrogate model."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    study = new_study(lower_is_better=lower_is_better)
    tell_study(study, space, trials)
    quantile = min(0.5, max(0.1, MIN_BEST / len(trials)))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
    shares = get_param_importances(study, evaluator=evaluator)
    best = math.ceil(quantile * len(trials))
    return Importances(
        method="PED-ANOVA",
        shares=_sorted({name: float(share) for name, share in shares.items()}),
        explanation=f"how much a setting sets the best {best} of {len(trials)} trials apart",
    )


def _sorted(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
