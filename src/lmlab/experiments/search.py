"""Search methods of a sweep: grid, random, and TPE (tree-structured Parzen estimator).

The proposal of trial n depends on the seed, on n, and for TPE on what is known of earlier trials:
on nothing else, so that it can be made again after a kill.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np

from lmlab.core.limits import check_limit
from lmlab.experiments.optuna_study import new_study
from lmlab.experiments.search_space import Dimension, Point, grid_points, space_size

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

SearchMethod = Literal["grid", "random", "tpe"]
SEARCH_METHODS = get_args(SearchMethod)
ATTEMPTS = 100
"""How often a point that was tried before, or can't be trained, is drawn again."""


@dataclass(frozen=True, kw_only=True)
class KnownTrial:
    """What a search knows of an earlier trial."""

    point: Point
    value: float | None
    """None if it failed, was pruned, or still runs."""
    losses: tuple[float, ...] = ()
    """Of a pruned one."""
    running: bool = False

    @cached_property
    def key(self) -> str:
        """The same for equal points alone."""
        return _key(self.point)


class Search(Protocol):
    """Proposes the points of trials."""

    adaptive: bool
    """Whether proposals depend on earlier results."""

    def propose(self, number: int, known: Sequence[KnownTrial]) -> Point | None:
        """The point of trial `number` given the earlier trials, in order; None if none is left."""


Trainable = Callable[[Point], bool]


class GridSearch:
    """Every point of the product, in order."""

    adaptive = False

    def __init__(self, space: Sequence[Dimension]) -> None:
        """A UserError where there are infinitely many points, or too many."""
        for item in space:
            if math.isinf(item.size):
                item.grid()  # says what it needs
        check_limit("trials", int(space_size(space)), called="the number of points of a grid")
        self._points = list(grid_points(space))

    def propose(self, number: int, known: Sequence[KnownTrial]) -> Point | None:
        return self._points[number] if number < len(self._points) else None


class SampledSearch:
    """Random search, or TPE (Bergstra et al. 2011), by Optuna's samplers; no point twice."""

    def __init__(
        self,
        space: Sequence[Dimension],
        *,
        seed: int,
        trainable: Trainable,
        tpe: bool = False,
        startup_trials: int = 10,
        lower_is_better: bool = True,
    ) -> None:
        """TPE begins with `startup_trials` random ones."""
        self.adaptive = tpe
        self._space = space
        self._seed = seed
        self._trainable = trainable
        self._startup_trials = startup_trials
        self._lower_is_better = lower_is_better

    def propose(self, number: int, known: Sequence[KnownTrial]) -> Point | None:
        tried = {trial.key for trial in known}
        if len(tried) >= space_size(self._space):
            return None
        for attempt in range(ATTEMPTS):
            point = self._draw(number, attempt, known)
            if _key(point) not in tried and self._trainable(point):
                return point
        rest = self._remaining(tried)
        return next(iter(rest), None)

    def _remaining(self, tried: set[str]) -> Sequence[Point]:
        """The first point of a small space that was not tried; none of an infinite one."""
        if math.isinf(space_size(self._space)):
            return ()
        left = (p for p in grid_points(self._space) if _key(p) not in tried and self._trainable(p))
        return list(islice(left, 1))

    def _draw(self, number: int, attempt: int, known: Sequence[KnownTrial]) -> Point:
        seeds = np.random.SeedSequence([self._seed, number, attempt]).generate_state(1)
        study = new_study(
            sampler=self._sampler(int(seeds[0])), lower_is_better=self._lower_is_better
        )
        if self.adaptive:
            tell_study(study, self._space, known)
        distributions = {item.name: item.distribution() for item in self._space}
        drawn = study.ask(distributions).params
        return {item.name: item.decode(drawn[item.name]) for item in self._space}

    def _sampler(self, seed: int) -> BaseSampler:
        import warnings

        from optuna.samplers import RandomSampler, TPESampler

        if not self.adaptive:
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar is declared experimental
            return TPESampler(seed=seed, n_startup_trials=self._startup_trials, constant_liar=True)


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


def tell_study(study: Study, space: Sequence[Dimension], known: Sequence[KnownTrial]) -> None:
    """Give a study the earlier trials."""
    for trial in known:
        study.add_trial(frozen_trial(space, trial))


def frozen_trial(space: Sequence[Dimension], trial: KnownTrial) -> FrozenTrial:
    """A trial as Optuna's record; a failed one counts as the worst of the pruned."""
    from optuna.trial import TrialState, create_trial

    state = TrialState.PRUNED if trial.value is None else TrialState.COMPLETE
    return create_trial(
        state=TrialState.RUNNING if trial.running else state,
        value=trial.value,
        params={item.name: item.encode(trial.point[item.name]) for item in space},
        distributions={item.name: item.distribution() for item in space},
        intermediate_values=dict(enumerate(trial.losses, 1)),
    )
