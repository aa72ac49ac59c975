"""Pruning of hopeless trainings by Optuna's pruners, on validation losses as they come.

A training is compared with earlier ones whose losses are known before it starts. So its end depends
on its own losses alone: not on timing, nor on how many trainings run at once, nor on where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from lmlab.core.untrusted_input import parse_dataclass
from lmlab.training.train_options import StoppingRule

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

PruningMethod = Literal["median", "halving"]
PRUNING_METHODS = get_args(PruningMethod)


@dataclass(frozen=True, kw_only=True)
class PruningOptions:
    """How hopeless trainings are recognised; a resource unit is a validation."""

    method: PruningMethod = "median"
    """median: the best loss so far is above the median of the earlier ones at the same validation;
    halving: it is not among the best 1/factor at a rung (successive halving, Li et al. 2020)."""
    startup_trials: int = 5
    """Trials that median does not prune, and that must have finished before."""
    warmup: int = 1
    """Validations without pruning at the start of a training, with median."""
    factor: int = 3
    """Reduction factor of halving: rungs are at validation 1, factor, factor² …"""


@dataclass(frozen=True, kw_only=True)
class EarlierTraining:
    """The validation losses of an earlier training."""

    losses: tuple[float, ...]
    pruned: bool = False


@dataclass(frozen=True, kw_only=True)
class PruningPlan:
    """All that decides whether one training is pruned: plain data."""

    options: PruningOptions
    earlier: tuple[EarlierTraining, ...]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> PruningPlan:
        """The plan of a JSON object."""
        earlier = (
            EarlierTraining(losses=tuple(item["losses"]), pruned=bool(item["pruned"]))
            for item in record["earlier"]
        )
        options = parse_dataclass(PruningOptions, record["options"])
        return cls(options=options, earlier=tuple(earlier))

    def rule(self) -> StoppingRule:
        """The stopping rule of the training."""
        from lmlab.experiments.optuna_study import new_study

        study = new_study(pruner=_pruner(self.options))
        for training in self.earlier:
            replayed = study.ask()
            for number, loss in enumerate(training.losses, 1):
                replayed.report(loss, number)
                replayed.should_prune()  # halving notes the rungs that a trial has reached
            study.tell(replayed, **_result(training))
        trial = study.ask()

        reported = 0

        def hopeless(losses: Sequence[float]) -> bool:
            nonlocal reported
            prune = False
            while reported < len(losses):
                reported += 1
                trial.report(losses[reported - 1], reported)
                prune = trial.should_prune()
            return prune

        return hopeless


def _pruner(options: PruningOptions) -> BasePruner:
    from optuna.pruners import MedianPruner, SuccessiveHalvingPruner

    if options.method == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=options.factor)
    first = options.warmup + 1  # validations count from 1
    return MedianPruner(n_startup_trials=options.startup_trials, n_warmup_steps=first)


def _result(training: EarlierTraining) -> dict[str, Any]:
    from optuna.trial import TrialState

    if training.pruned:
        return {"state": TrialState.PRUNED}
    return {"values": min(training.losses)}
