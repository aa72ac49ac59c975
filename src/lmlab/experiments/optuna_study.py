"""Optuna as a library of search and pruning methods: studies in memory, quiet, made anew each time.

What a study has seen is given to it from our own records, so there is one truth on disk, and a
proposal depends on the records and the seed alone.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING

from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler


def require_optuna(purpose: str) -> None:
    """A UserError where Optuna is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError(f"{purpose} needs Optuna; install it with pip install 'lmlab[sweep]'.")


def new_study(
    *,
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
    lower_is_better: bool = True,
) -> Study:
    """An empty study in memory, which logs nothing."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.create_study(
                sampler=sampler or optuna.samplers.RandomSampler(seed=0),
                pruner=pruner or optuna.pruners.NopPruner(),
                direction="minimize" if lower_is_better else "maximize",
            )
    finally:
        optuna.logging.set_verbosity(level)
