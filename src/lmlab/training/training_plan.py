"""Training plan: names resolved, settings merged and checked before training; resume checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.registry import catalogue, registered_system, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus
from lmlab.data.tokenizers import Tokenizer
from lmlab.training.base_models import BaseModel
from lmlab.training.config import (
    BUDGETS,
    TrainingConfig,
    apply_settings,
    recipe_settings,
    replace_budgets,
    split_settings,
    with_budget,
)
from lmlab.training.corpus_setup import OpenedCorpus, RunTokenizers
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder
from lmlab.training.run_records import BaseRecord, CorpusRecord, MemoryRecord
from lmlab.training.system_building import as_tuples
from lmlab.training.training_origins import TrainingOrigins

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CHANGEABLE_ON_RESUME = frozenset(
    {
        *BUDGETS,
        "patience",
        "log_every",
        "checkpoint_minutes",
        "checkpoint_steps",
        "evaluate_every",
        "gradient_checkpointing",
        "distributed",
    }
)
"""Training settings that may differ on resuming."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPlan:
    """A planned training, names resolved and settings checked."""

    card: Card
    size: str
    recipe: str | None
    system_config: DataclassInstance
    training: TrainingConfig


def make_training_plan(
    card: Card,
    size: str,
    recipe: str | None,
    settings: Mapping[str, Any],
    budget: Mapping[str, float | None],
    seed: int,
    base_models: Sequence[BaseModel] = (),
    continued: BaseRecord | None = None,
) -> TrainingPlan:
    """Merge size, base or encoder, recipe, settings and budget: each overrides those before it.

    The system's settings and size are those of a `continued` run, whatever the recipe says.
    """
    module = system_module(card.name)
    training, see = TrainingConfig(seed=seed), f"lmlab settings {card.name}"
    recipe_layer = recipe_settings(module, recipe)
    if continued is not None:
        size = continued.size
        system_config = apply_settings(module.Config(), as_tuples(continued.system_config))
        recipe_layer = split_settings(recipe_layer, system_config, training, see)[1]
    elif size not in module.SIZES:
        raise unknown_name(f"size of {card.name}", size, module.SIZES)
    else:
        system_config = module.SIZES[size]
    bases = base_models if continued is None else ()
    inherited = [other.settings_for(system_config) for other in bases]
    for layer in (*inherited, recipe_layer, settings):
        of_system, of_training = split_settings(layer, system_config, training, see)
        try:
            system_config = apply_settings(system_config, of_system)
        except UserError as error:
            if layer not in inherited:
                raise
            raise UserError(f"the base does not fit {card.name}: {error}") from error
        training = apply_settings(training, replace_budgets(of_training))
    return TrainingPlan(
        card=card,
        size=size,
        recipe=recipe,
        system_config=system_config,
        training=with_budget(training, keep=_normalised_names(settings), **budget),
    )


def resumed_plan(
    resumed: RunConfig,
    card: Card,
    size: str | None,
    recipe: str | None,
    settings: Mapping[str, Any],
    budget: Mapping[str, float | None],
    seed: int | None,
) -> TrainingPlan:
    """The plan of the resumed run, overridden by what is given now."""
    module = system_module(card.name)
    if resumed.system != card.name:
        raise UserError(
            f"the system of this run is {resumed.system}, got {card.name}; resume it "
            "with its own name, or choose another --out."
        )
    system_config = apply_settings(module.Config(), resumed.system_config)
    see = f"lmlab settings {card.name}"
    of_system, of_training = split_settings(settings, system_config, resumed.training, see)
    training = apply_settings(resumed.training, replace_budgets(of_training))
    training = with_budget(training, keep=_normalised_names(settings), **budget)
    return TrainingPlan(
        card=card,
        size=size or resumed.size,
        recipe=recipe if recipe is not None else resumed.recipe,
        system_config=apply_settings(system_config, of_system),
        training=training if seed is None else replace(training, seed=seed),
    )


def _normalised_names(settings: Mapping[str, Any]) -> frozenset[str]:
    """Names of settings, in the form of the fields."""
    return frozenset(key.strip().replace("-", "_") for key in settings)


def system_vocabulary(tokenizer: Tokenizer, corpus: Corpus) -> Vocabulary:
    """The tokenizer's vocabulary for a system: contiguous text has no start token."""
    vocabulary = tokenizer.vocabulary
    if corpus.layout.kind != "contiguous":
        return vocabulary
    return replace(vocabulary, first=vocabulary.end)


def describe_run(
    plan: TrainingPlan,
    opened: OpenedCorpus,
    tokenizers: RunTokenizers,
    *,
    origins: TrainingOrigins,
    memories: Mapping[str, MemoryRecord],
) -> RunConfig:
    """The contents of config.json: enough to repeat the run from its own folder."""
    corpus, tokenizer, sources = opened.corpus, tokenizers.texts, tokenizers.sources
    return RunConfig(
        plugin=registered_system(plan.card.name).origin,
        system=plan.card.name,
        size=plan.size,
        recipe=plan.recipe,
        seed=plan.training.seed,
        system_config=asdict(plan.system_config),
        vocabulary=system_vocabulary(tokenizer, corpus),
        tokenizer=tokenizer.kind,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        source_vocabulary=None if sources is None else sources.vocabulary,
        source_tokenizer=None if sources is None else sources.kind,
        layout=corpus.layout,
        corpus=CorpusRecord(
            name=corpus.name,
            spec=opened.spec,
            fingerprint=corpus.fingerprint(),
            seed=opened.seed,
            errors=opened.errors,
        ),
        training=plan.training,
        base=origins.record("base"),
        encoder=origins.record("encoder"),
        continued_from=origins.continued_record,
        teacher=origins.record("teacher"),
        predecessor=origins.record("predecessor"),
        memories=memories,
    )


def check_resumable(saved: RunConfig, now: RunConfig, run: RunFolder) -> None:
    """Check that a resumed training is the original one; only its length may differ."""
    before, after = saved.to_json(), now.to_json()
    fixed = ("size", "recipe", "tokenizer", "layout")
    pairs = [(name, before[name], after[name]) for name in fixed]
    for part in ("system_config", "training"):
        # Lists are read from the file, tuples are the defaults of settings that it does not name.
        old_settings, new_settings = as_tuples(before[part]), as_tuples(after[part])
        pairs += [
            (name, old_settings[name], value)
            for name, value in new_settings.items()
            if name not in CHANGEABLE_ON_RESUME and name in old_settings
        ]
    for name, old, new in pairs:
        if old != new:
            raise UserError(
                f"the run {run.path} was started with {name}={old}, got {new}; resume it "
                "unchanged, or choose another --out."
            )
    if saved.corpus.fingerprint != now.corpus.fingerprint:
        raise UserError(
            f"the run {run.path} was started on other text ({saved.corpus.spec}) than "
            f"{now.corpus.spec} holds now; resume it with that, or choose another --out."
        )


def check_required_inputs(card: Card, **options: str | Path | None) -> None:
    """Reject options that do not apply to the system, and a system that is not trained."""
    if card.components:
        raise UserError(
            f"{card.name} is made of trained runs and not trained itself; use lmlab mix RUN RUN "
            "--data CORPUS --out RUN."
        )
    for name, value in options.items():
        # A base of the system itself is one whose training continues.
        if value is not None and name not in (*card.needs, "base"):
            raise UserError(f"--{name} does not apply to {card.name}; remove it.")


def objective_setting(card: Card, objective: str | None) -> dict[str, Any]:
    """A non-default objective as a setting; a UserError if it does not apply."""
    if objective is None or objective == card.objectives[0]:
        return {}
    if objective not in card.objectives:
        trainable = [other.name for other in catalogue().values() if objective in other.objectives]
        suggestion = f"; it trains {', '.join(trainable)}" if trainable else ""
        raise UserError(
            f"{card.name} can't be trained with the objective {objective!r}; those that fit: "
            f"{', '.join(card.objectives)}{suggestion}."
        )
    return {"objective": objective}
