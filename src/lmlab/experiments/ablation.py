"""Ablation study: plan and results of a system trained intact and with terms disabled, by seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType
from typing import Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.html import Html, join_html
from lmlab.core.limits import check_limit
from lmlab.core.notebook import NotebookRecord
from lmlab.core.options import takes
from lmlab.core.registry import catalogue, system_module
from lmlab.core.switches import describe_switches, parse_switch_sets, parse_switches
from lmlab.core.system_files import resolve_system
from lmlab.core.vocabulary import Vocabulary
from lmlab.experiments.ablation_options import AblationPlanOptions
from lmlab.plotting.notebook_figures import notebook_figure
from lmlab.training.config import TrainingConfig
from lmlab.training.setting_records import DEFAULT_SIZE
from lmlab.training.training_plan import TrainingPlan, make_training_plan

DisabledTerms = tuple[int, ...]
RECORD_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class AblationTrial:
    """One training run: a set of disabled terms, and a seed."""

    disabled: DisabledTerms
    seed: int
    run: str
    """Its folder, relative to the ablation's."""
    parameters: int
    seconds: float
    """Wall-clock training time, over all resumed sessions."""
    losses: tuple[tuple[int, float], ...]
    """Epochs and the held-out loss after each, in nats per token."""
    failed: str = ""
    """Why there is no loss, where the training diverged to non-finite numbers."""

    def loss_at(self, epoch: int) -> float | None:
        """The loss after that many epochs; None where training was shorter."""
        return next((loss for after, loss in self.losses if after >= epoch), None)


@dataclass(frozen=True, kw_only=True)
class SeedMean:
    """Mean over seeds, with the standard deviation where there are several."""

    mean: float
    standard_deviation: float | None
    seeds: int


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """Results of one set of disabled terms."""

    disabled: DisabledTerms
    terms: str
    """The set as text."""
    intact: bool
    """Whether it is the baseline of the others."""
    parameters: int
    seconds: float
    """Mean training time."""
    losses: Mapping[int, SeedMean]
    """By epoch."""
    differences: Mapping[int, SeedMean]
    """Loss minus the intact system's with the same seed, by epoch; empty for the intact one."""
    failed: str = ""


@dataclass(frozen=True, kw_only=True)
class AblationPlan:
    """Plan of an ablation: system, settings, sets of disabled terms, seeds and epochs."""

    card: Card
    plan: TrainingPlan
    """Size, recipe, settings and budget; its switches are those of the intact system."""
    data: str
    tokenizer: str | None
    given: Mapping[str, Any]
    """The settings as given, without the switches."""
    ablated_sets: tuple[DisabledTerms, ...]
    """The intact system's own first."""
    seeds: int
    report_epochs: tuple[int, ...]
    """Epochs at which losses are reported."""
    notes: tuple[str, ...] = ()

    @property
    def intact(self) -> DisabledTerms:
        return self.ablated_sets[0]

    def record(self) -> dict[str, Any]:
        """What must stay the same when an ablation is resumed."""
        system, training = asdict(self.plan.system_config), asdict(self.plan.training)
        record = {
            "system": self.card.name,
            "size": self.plan.size,
            "recipe": self.plan.recipe,
            "data": self.data,
            "tokenizer": self.tokenizer,
            **{name: value for name, value in training.items() if name != "seed"},
            **system,
        }
        return dict(json.loads(json.dumps(record)))


@dataclass(frozen=True, kw_only=True)
class Ablation(NotebookRecord):
    """Ablation results: the table, and the trials behind it."""

    path: Path
    system: str
    corpus: str
    split: str
    """The split of the losses."""
    switches: tuple[str, ...]
    report_epochs: tuple[int, ...]
    seeds: int
    rows: tuple[AblationRow, ...]
    """Best first, by the loss at the last reported epoch."""
    trials: tuple[AblationTrial, ...]
    notes: tuple[str, ...]
    finished: bool
    """Whether every planned training is done."""

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each set of terms and reported epoch: loss, and difference to the intact."""
        for row in self.rows:
            for epoch in self.report_epochs:
                loss, difference = row.losses.get(epoch), row.differences.get(epoch)
                yield {
                    "off": ",".join(map(str, row.disabled)),
                    "terms": row.terms,
                    "epoch": epoch,
                    "loss": None if loss is None else loss.mean,
                    "loss_spread": None if loss is None else loss.standard_deviation,
                    "difference": None if difference is None else difference.mean,
                    "difference_spread": (
                        None if difference is None else difference.standard_deviation
                    ),
                    "parameters": row.parameters,
                    "seconds": row.seconds,
                }

    def html_body(self) -> Html:
        """The table, and the figure of the differences."""
        from lmlab.experiments.ablation_tables import ablation_figure, ablation_table

        parts = [ablation_table(self).html()]
        if any(row.differences for row in self.rows):
            parts.append(notebook_figure(ablation_figure(self)))
        return join_html(parts)

    def html_notes(self) -> Sequence[str]:
        """The caveats."""
        return self.notes

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        record = asdict(self) | {"path": str(self.path)}
        return dict(json.loads(json.dumps(record)))


@takes(AblationPlanOptions)
def plan_ablation(system: str | Path | ModuleType, options: AblationPlanOptions) -> AblationPlan:
    """Resolve and check everything before anything is trained."""
    card = resolve_system(system)
    if not card.switches:
        names = [other.name for other in catalogue().values() if other.switches]
        raise UserError(
            f"{card.name} declares no switches to turn off; those that do: {', '.join(names)}."
        )
    if options.seeds < 1:
        raise UserError(f"an ablation needs at least one seed, got {options.seeds}.")
    check_limit("seeds", options.seeds, called="the number of seeds")
    given = {
        key.strip().replace("-", "_"): value for key, value in (options.settings or {}).items()
    }
    if "seed" in given:
        raise UserError("an ablation sets its seeds itself; give their number by --seeds.")
    plan = make_training_plan(
        card, options.size or DEFAULT_SIZE, options.recipe, given, {"epochs": options.epochs}, 0
    )
    given.pop("off", None)
    sets, notes = _ablated_sets(
        card,
        plan,
        options.switches,
        each=options.each or (options.switches is None and not options.pairs),
        pairs=options.pairs,
    )
    return AblationPlan(
        card=card,
        plan=plan,
        data=str(options.data),
        tokenizer=options.tokenizer,
        given=given,
        ablated_sets=sets,
        seeds=options.seeds,
        report_epochs=_report_epochs(options.at, plan.training),
        notes=notes,
    )


def _report_epochs(at: Sequence[int], training: TrainingConfig) -> tuple[int, ...]:
    if training.epochs is None or training.steps is not None or training.minutes is not None:
        raise UserError("the budget of an ablation is in epochs; remove steps and minutes.")
    for epoch in at:
        if not 1 <= epoch <= training.epochs:
            raise UserError(
                f"losses can be reported at epochs 1 to {training.epochs}, got {epoch}; give "
                "a larger --epochs."
            )
    return tuple(sorted(set(at))) or (training.epochs,)


def _ablated_sets(
    card: Card,
    plan: TrainingPlan,
    switches: str | Sequence[Sequence[int | str]] | None,
    *,
    each: bool,
    pairs: bool,
) -> tuple[tuple[DisabledTerms, ...], tuple[str, ...]]:
    """The intact set and all others, and notes on those that have no effect and are left out.

    Terms disabled in the settings are disabled in every set, the intact one too.
    """
    config: Any = plan.system_config  # a system with switches has the setting `off`
    base: DisabledTerms = tuple(config.off)
    if refusal := _build_error(card, plan, base):
        raise UserError(refusal)
    named = _parse_sets(card, switches)
    for off in named:
        if refusal := _build_error(card, plan, _union(base, off)):
            raise UserError(refusal)
    others = [switch for switch in range(len(card.switches)) if switch not in base]
    candidates: list[DisabledTerms] = [(switch,) for switch in others] if each else []
    candidates += list(combinations(others, 2)) if pairs else []
    notes = []
    for off in candidates:
        if refusal := _build_error(card, plan, _union(base, off)):
            notes.append(f"{describe_switches(off, card.switches)} was left out: {refusal}")
        else:
            named.append(off)
    joined = [base, *(_union(base, off) for off in named)]
    return tuple(dict.fromkeys(joined)), tuple(notes)


def _parse_sets(
    card: Card, switches: str | Sequence[Sequence[int | str]] | None
) -> list[DisabledTerms]:
    if switches is None:
        return []
    if isinstance(switches, str):
        return parse_switch_sets(switches, card.switches, of=card.name)
    return [parse_switches(off, card.switches, of=card.name) for off in switches]


def _union(base: DisabledTerms, off: DisabledTerms) -> DisabledTerms:
    return tuple(sorted({*base, *off}))


def _build_error(card: Card, plan: TrainingPlan, off: DisabledTerms) -> str:
    """Why the system can't be built with these disabled; empty where it can."""
    module = system_module(card.name)
    try:
        module.build(replace(plan.system_config, off=off), Vocabulary(size=8))
    except UserError as error:
        return str(error)
    return ""


def summarise_trials(
    plan: AblationPlan, trials: Sequence[AblationTrial], *, path: Path, split: str
) -> Ablation:
    """Aggregate the finished trials into rows."""
    by_key = {(trial.disabled, trial.seed): trial for trial in trials}
    keys = [(off, seed) for seed in range(plan.seeds) for off in plan.ablated_sets]
    finished_trials = [by_key[key] for key in keys if key in by_key]
    rows = [_row(plan, off, finished_trials) for off in plan.ablated_sets]
    last = plan.report_epochs[-1]

    def rank(row: AblationRow) -> float:
        return row.losses[last].mean if last in row.losses else float("inf")

    return Ablation(
        path=path,
        system=plan.card.name,
        corpus=plan.data,
        split=split,
        switches=plan.card.switches,
        report_epochs=plan.report_epochs,
        seeds=plan.seeds,
        rows=tuple(sorted((row for row in rows if row is not None), key=rank)),
        trials=tuple(finished_trials),
        notes=plan.notes,
        finished=len(finished_trials) == len(keys),
    )


def _row(
    plan: AblationPlan, off: DisabledTerms, trials: Sequence[AblationTrial]
) -> AblationRow | None:
    row_trials = [trial for trial in trials if trial.disabled == off]
    if not row_trials:
        return None
    intact = {trial.seed: trial for trial in trials if trial.disabled == plan.intact}
    losses, differences = {}, {}
    for epoch in plan.report_epochs:
        by_seed = {t.seed: loss for t in row_trials if (loss := t.loss_at(epoch)) is not None}
        intact_losses = {seed: trial.loss_at(epoch) for seed, trial in intact.items()}
        paired = [
            loss - baseline
            for seed, loss in by_seed.items()
            if (baseline := intact_losses.get(seed)) is not None
        ]
        if by_seed:
            losses[epoch] = _seed_mean(list(by_seed.values()))
        if paired and off != plan.intact:
            differences[epoch] = _seed_mean(paired)
    return AblationRow(
        disabled=off,
        terms=describe_switches(off, plan.card.switches),
        intact=off == plan.intact,
        parameters=row_trials[0].parameters,
        seconds=mean(trial.seconds for trial in row_trials),
        losses=losses,
        differences=differences,
        failed=next((trial.failed for trial in row_trials if trial.failed), ""),
    )


def _seed_mean(values: Sequence[float]) -> SeedMean:
    spread = stdev(values) if len(values) > 1 else None
    return SeedMean(mean=mean(values), standard_deviation=spread, seeds=len(values))
