"""The plan of a sweep: its spec checked against systems, settings and data before any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, get_type_hints

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.options import union_members
from lmlab.core.registry import system_module
from lmlab.core.system_files import resolve_system, system_argument
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.experiments.optuna_study import require_optuna
from lmlab.experiments.search import GridSearch, SampledSearch, Search
from lmlab.experiments.search_space import (
    Dimension,
    Point,
    Range,
    describe_point,
    grid_points,
    space_size,
)
from lmlab.experiments.sweep_spec import SYSTEM, VARIED_OPTIONS, SweepSpec
from lmlab.experiments.training_tasks import TrainingTask
from lmlab.experiments.validation_metric import LOSS, find_metric
from lmlab.training.base_models import load_base_model, resolve_base
from lmlab.training.config import TOKENIZER_SETTINGS, TrainingConfig
from lmlab.training.run_folder import RunFolder
from lmlab.training.setting_records import DEFAULT_SIZE
from lmlab.training.system_building import build_system
from lmlab.training.train import check_validation_split
from lmlab.training.training_plan import (
    TrainingPlan,
    check_required_inputs,
    make_training_plan,
    objective_setting,
)

TOKENIZATION = ("tokenizer", "source_tokenizer", *TOKENIZER_SETTINGS)
"""What changes the tokens, and so what a loss per token means."""
BUDGETS = ("epochs", "steps", "minutes")
MEMORIES = ("base", "encoder", "documents", "knowledge")
PROBE_VOCABULARY = Vocabulary(size=64)
PROBED_POINTS = 64
"""Points that a value is tried with before it is refused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepPlan:
    """A sweep that can be run."""

    spec: SweepSpec
    search: Search
    corpus: str
    """The fingerprint of the data."""
    lower_is_better: bool
    track: tuple[str, ...] = ()
    """Trackers of every training; no part of the record, since no result depends on them."""

    @property
    def sequential(self) -> bool:
        """Whether a trial depends on the results of earlier ones."""
        return self.search.adaptive or self.spec.prune is not None

    @property
    def trials(self) -> float:
        """The number of trials, as far as it is known; infinite for a budget in hours alone."""
        size = space_size(self.spec.space)
        return size if self.spec.trials is None else min(self.spec.trials, size)

    def record(self) -> dict[str, Any]:
        """What must stay the same when the sweep is continued."""
        return {**self.spec.record(), "corpus": self.corpus}

    def task(self, name: str, out: Path, point: Point, seed: int) -> TrainingTask:
        """The training of a point by a seed."""
        spec = self.spec
        metric = None if spec.select == LOSS else spec.select
        options = training_options(spec, point) | {"seed": seed}
        options |= {"track": self.track} if self.track else {}
        return TrainingTask(
            name=name,
            out=str(out),
            system=system_argument(resolve_system(point.get(SYSTEM, spec.systems[0]))),
            options=options,
            threads=spec.threads,
            metric=metric,
        )


def training_options(spec: SweepSpec, point: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `lmlab.train` for a point, without seed and folder."""
    varied = {name: point[name] for name in VARIED_OPTIONS if name in point}
    settings = {name: value for name, value in point.items() if name not in (SYSTEM, *varied)}
    return {"data": spec.data, **spec.options, **varied, "settings": {**spec.settings, **settings}}


def plan_sweep(spec: SweepSpec) -> SweepPlan:
    """Resolve and check everything before anything is trained."""
    cards = [resolve_system(system) for system in spec.systems]
    spec = replace(spec, space=tuple(_typed_dimension(item, cards) for item in spec.space))
    if spec.search.method != "grid" or spec.prune is not None:
        require_optuna("pruning" if spec.search.method == "grid" else spec.search.method)
    lower_is_better = spec.select == LOSS or bool(find_metric(spec.select).lower_is_better)
    _check_comparable_losses(spec)
    corpus = open_corpus(
        spec.data,
        errors=spec.options.get("errors", "strict"),
        seed=spec.options.get("data_seed", 0),
    )
    _check_corpus(spec, corpus, cards)
    checks = _PointChecks(spec)
    checks.check_dimensions()
    search: Search
    if spec.search.method == "grid":
        search = GridSearch(spec.space)
        for point in grid_points(spec.space):
            checks.check(point)
    else:
        search = SampledSearch(
            spec.space,
            seed=spec.seed,
            trainable=checks.trainable,
            tpe=spec.search.method == "tpe",
            startup_trials=spec.search.startup_trials,
            lower_is_better=lower_is_better,
        )
    return SweepPlan(
        spec=spec, search=search, corpus=corpus.fingerprint(), lower_is_better=lower_is_better
    )


def _typed_dimension(item: Dimension, cards: Sequence[Card]) -> Dimension:
    """A range as one of whole numbers or not, as the setting is; a UserError if it is neither."""
    if not isinstance(item, Range):
        return item
    for card in cards:
        hints = get_type_hints(TrainingConfig) | get_type_hints(system_module(card.name).Config)
        kinds = union_members(hints[item.name]) if item.name in hints else ()
        if not kinds:
            continue  # unknown, which the checks of its values report
        if float not in kinds and int not in kinds:
            raise UserError(f"{item.name} is no number and has no range; list the values to try.")
        if float not in kinds and not item.whole:
            raise UserError(f"{item.name} is a whole number, and so must its range be.")
        if int not in kinds:
            low, high = float(item.low), float(item.high)
            item = replace(item, low=low, high=high, whole=False)
    return item


def _check_comparable_losses(spec: SweepSpec) -> None:
    """Losses per token compare only where the tokens are the same."""
    varied = [item.name for item in spec.space if item.name in TOKENIZATION]
    if varied and spec.select == LOSS:
        raise UserError(
            f"the space varies {varied[0]}, and losses per token do not compare between "
            "tokenizers; select by bits_per_character."
        )
    if varied and spec.prune is not None:
        raise UserError(
            f"the space varies {varied[0]}, and pruning compares losses per token; remove prune."
        )


def _check_corpus(spec: SweepSpec, corpus: Corpus, cards: Sequence[Card]) -> None:
    if "validation" not in corpus.splits:
        raise UserError(
            f"{spec.data} has no validation split, by which trials are selected; give a folder "
            "with a valid* file."
        )
    for card in cards:
        if corpus.layout.kind == "pairs" and not card.conditional:
            raise UserError(
                f"a parallel corpus does not apply to {card.name}, which takes no source texts; "
                "remove it, or give a corpus of single texts."
            )


class _PointChecks:
    """Checks whether points can be trained, each combination of system settings once."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        self._built: dict[str, str] = {}
        """Why the system of a config can't be built, by its representation; empty where it can."""
        bases = ((role, spec.options.get(role)) for role in ("base", "encoder"))
        self._bases = [load_base_model(path, role) for role, path in bases if path is not None]

    def check_dimensions(self) -> None:
        """A UserError where a value can't be trained whatever the others are, for any system."""
        varied = [item for item in self._spec.space if item.name != SYSTEM]
        for system in self._spec.systems:
            for item in varied:
                others = [[(o.name, v) for v in o.probes()] for o in varied if o is not item]
                for value in item.probes():
                    points = (
                        {SYSTEM: system, item.name: value, **dict(o)} for o in product(*others)
                    )
                    self._check_any(list(islice(points, PROBED_POINTS)))

    def _check_any(self, points: Sequence[Mapping[str, Any]]) -> None:
        """The error of the first point where none can be trained."""
        errors = []
        for point in points:
            try:
                self._plan(point)
            except UserError as error:
                errors.append(error)
            else:
                return
        raise errors[0]

    def trainable(self, point: Point) -> bool:
        """Whether a point can be trained."""
        try:
            self.check(point)
        except UserError:
            return False
        return True

    def check(self, point: Point) -> None:
        """A UserError where a point can't be trained, because its settings exclude each other."""
        try:
            plan = self._plan(point)
        except UserError as error:
            raise UserError(f"{describe_point(point)} can't be trained: {error}") from error
        key = f"{plan.card.name} {plan.system_config}"
        if key not in self._built:
            self._built[key] = self._build_error(plan)
        if self._built[key]:
            raise UserError(f"{describe_point(point)} can't be trained: {self._built[key]}")

    def _plan(self, point: Mapping[str, Any]) -> TrainingPlan:
        options = training_options(self._spec, point)
        card = resolve_system(point.get(SYSTEM, self._spec.systems[0]))
        given = {name: options.get(name) for name in MEMORIES}
        check_required_inputs(card, **given)
        for role in ("base", "encoder"):
            if given[role] is None:
                resolve_base(card, role, None, None, RunFolder(Path()))
        plan = make_training_plan(
            card,
            options.get("size") or DEFAULT_SIZE,
            options.get("recipe"),
            options["settings"] | objective_setting(card, options.get("objective")),
            {name: options.get(name) for name in BUDGETS},
            0,
            self._bases,
        )
        check_validation_split(plan.training, selects=True)
        return plan

    def _build_error(self, plan: TrainingPlan) -> str:
        if plan.card.needs or self._bases:
            return ""  # what it is built on decides, which each training checks
        try:
            build_system(plan.card.name, asdict(plan.system_config), PROBE_VOCABULARY, seed=0)
        except UserError as error:
            return str(error)
        return ""
