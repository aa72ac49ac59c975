"""Results of a sweep: a row per trial, best first, and the importance of the settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from lmlab.core.html import Html, join_html
from lmlab.core.notebook import NotebookRecord
from lmlab.experiments.importances import Importances, setting_importances
from lmlab.experiments.search import KnownTrial
from lmlab.experiments.search_space import Point
from lmlab.experiments.sweep_plan import SweepPlan
from lmlab.experiments.sweep_records import SweepLog
from lmlab.experiments.training_tasks import TrainingOutcome
from lmlab.experiments.validation_metric import LOSS
from lmlab.plotting.notebook_figures import notebook_figure

TrialState = Literal["finished", "pruned", "failed", "unfinished", "planned"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One point of a sweep, trained by each seed."""

    number: int
    point: Point
    state: TrialState
    value: float | None = None
    """The mean over seeds of what is selected by; None unless it is finished."""
    spread: float | None = None
    """The standard deviation over seeds (n - 1), where there are several."""
    values: Mapping[int, float]
    """By seed, of the trainings that finished."""
    parameters: int | None = None
    seconds: float = 0.0
    """Training time of all its seeds."""
    runs: tuple[str, ...] = ()
    """Folders of its runs, relative to the sweep's."""
    losses: tuple[float, ...] = ()
    """The validation losses of its first seed."""
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Sweep(NotebookRecord):
    """Results of a sweep: the table, and what it says of the settings."""

    path: Path
    systems: tuple[str, ...]
    corpus: str
    varied: tuple[str, ...]
    """The names of the varied settings."""
    log_scaled: tuple[str, ...]
    """Those of them that are compared by their logarithm."""
    select: str
    unit: str
    lower_is_better: bool
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    """Best first; then pruned, failed, unfinished and planned ones."""
    importances: Importances | None
    notes: tuple[str, ...]
    finished: bool
    """Whether every planned training is done."""

    @property
    def best(self) -> Trial | None:
        """The best trial, if any has finished."""
        return next((trial for trial in self.trials if trial.state == "finished"), None)

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each trial: its settings, and what came of it."""
        for trial in self.trials:
            yield {
                "trial": trial.number,
                **{name: trial.point[name] for name in self.varied},
                self.select: trial.value,
                "spread": trial.spread,
                "state": trial.state,
                "parameters": trial.parameters,
                "seconds": trial.seconds,
                "failure": trial.failure,
            }

    def html_body(self) -> Html:
        """The table and the figures."""
        from lmlab.experiments.sweep_tables import sweep_figures, sweep_table

        return join_html([sweep_table(self).html(), *map(notebook_figure, sweep_figures(self))])

    def html_notes(self) -> Sequence[str]:
        """The caveats."""
        return self.notes

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return dict(json.loads(json.dumps(asdict(self) | {"path": str(self.path)})))


def training_name(number: int, seed: int) -> str:
    """The name of a training and of its run's folder."""
    return f"trial-{number:03d}-seed{seed}"


def trial_result(plan: SweepPlan, log: SweepLog, number: int) -> Trial:
    """What is known of a trial."""
    names = {seed: training_name(number, seed) for seed in plan.spec.seeds}
    outcomes = {seed: log.outcomes[name] for seed, name in names.items() if name in log.outcomes}
    values = {
        s: o.value for s, o in outcomes.items() if o.state == "finished" and o.value is not None
    }
    state = _state(plan, outcomes)
    sizes = [outcome.parameters for outcome in outcomes.values() if outcome.parameters]
    first = outcomes.get(plan.spec.seeds[0])
    return Trial(
        number=number,
        point=log.points[number],
        state=state,
        value=mean(values.values()) if state == "finished" else None,
        spread=stdev(values.values()) if state == "finished" and len(values) > 1 else None,
        values=values,
        parameters=sizes[0] if sizes else None,
        seconds=sum(outcome.seconds for outcome in outcomes.values()),
        runs=tuple(f"{log.runs.name}/{names[seed]}" for seed in outcomes),
        losses=() if first is None else first.losses,
        failure=next((o.failure for o in outcomes.values() if o.failure), ""),
    )


def _state(plan: SweepPlan, outcomes: Mapping[int, TrainingOutcome]) -> TrialState:
    states = {outcome.state for outcome in outcomes.values()}
    if "pruned" in states:
        return "pruned"
    first_failed = plan.spec.prune is not None and "failed" in states
    if len(outcomes) < len(plan.spec.seeds) and not first_failed:
        return "unfinished" if outcomes else "planned"
    return "failed" if "failed" in states else "finished"


def known_trial(trial: Trial) -> KnownTrial:
    """A trial as a search knows it."""
    return KnownTrial(
        point=trial.point,
        value=trial.value,
        losses=trial.losses if trial.state == "pruned" else (),
        running=trial.state in ("unfinished", "planned"),
    )


def summarise_sweep(
    plan: SweepPlan, log: SweepLog, *, finished: bool, planned: Mapping[int, Point] | None = None
) -> Sweep:
    """The results so far, with `planned` trials that have not begun."""
    trials = [trial_result(plan, log, number) for number in sorted(log.points)]
    trials += [
        Trial(number=number, point=point, state="planned", values={})
        for number, point in (planned or {}).items()
        if number not in log.points
    ]
    units = {outcome.unit for outcome in log.outcomes.values() if outcome.unit}
    unit = (min(units) if units else "") if plan.spec.select == LOSS else plan.spec.select
    return Sweep(
        path=log.out,
        systems=plan.spec.systems,
        corpus=plan.spec.data,
        varied=tuple(item.name for item in plan.spec.space),
        log_scaled=tuple(item.name for item in plan.spec.space if item.log),
        select=plan.spec.select,
        unit=unit,
        lower_is_better=plan.lower_is_better,
        seeds=plan.spec.seeds,
        trials=tuple(sorted(trials, key=lambda trial: _rank(trial, plan.lower_is_better))),
        importances=setting_importances(
            plan.spec.space,
            [known_trial(trial) for trial in trials if trial.state in ("finished", "pruned")],
            lower_is_better=plan.lower_is_better,
        ),
        notes=tuple(_notes(trials, log, units)),
        finished=finished,
    )


def _rank(trial: Trial, lower_is_better: bool) -> tuple[int, float, int]:
    order = ("finished", "pruned", "failed", "unfinished", "planned")
    value = 0.0 if trial.value is None else trial.value
    return order.index(trial.state), value if lower_is_better else -value, trial.number


def _notes(trials: Sequence[Trial], log: SweepLog, units: set[str]) -> list[str]:
    """A sentence for each caveat."""
    notes = []
    if len(units) > 1:
        notes.append(
            f"The losses are in different units ({', '.join(sorted(units))}) and do not compare; "
            "select by a metric of lmlab compare."
        )
    kinds = sorted({outcome.kind for outcome in log.outcomes.values() if outcome.kind})
    if len(kinds) > 1:
        notes.append(f"The scores are of different kinds ({', '.join(kinds)}) and do not compare.")
    failed = [trial for trial in trials if trial.state == "failed"]
    if failed:
        notes.append(
            f"{len(failed)} of {len(trials)} trials failed; the first: trial {failed[0].number}, "
            f"{failed[0].failure}"
        )
    return notes
