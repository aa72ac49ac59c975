"""Settings in which compared models differ: the columns of `lmlab compare` beside the system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.setting_differences import differing_names
from lmlab.scoring.split_evaluation import IGNORED_SETTINGS, ScorableModel

DATA = "data"
"""The column of what the models were trained on."""


@dataclass(frozen=True, kw_only=True)
class ComparedSettings:
    """The names of what differs, and its values in each model."""

    names: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    """In the order of the models; without a setting that its system does not have."""


def compared_settings(models: Sequence[ScorableModel]) -> ComparedSettings:
    """What differs between models of one system, as in `lmlab runs`; seeds are no setting.

    What differs only between systems is left out, as every system has many settings of its own.
    """
    settings = [_settings(model) for model in models]
    systems: dict[str, list[Mapping[str, Any]]] = {}
    for model, values in zip(models, settings, strict=True):
        systems.setdefault(model.card.name, []).append(values)
    names: dict[str, None] = {}
    if len({model.config.corpus.fingerprint for model in models}) > 1:
        names[DATA] = None
    for of_system in systems.values():
        # The same corpus may be spelled in two ways.
        names |= {name: None for name in differing_names(of_system) if name != DATA}
    rows = tuple({n: values[n] for n in names if n in values} for values in settings)
    return ComparedSettings(names=tuple(names), rows=rows)


def _settings(model: ScorableModel) -> dict[str, Any]:
    """All settings of a run, as JSON has them; without those that do not affect the model."""
    corpus = model.config.corpus
    settings = {DATA: corpus.spec or corpus.name}
    settings |= {**model.config.system_config, **asdict(model.config.training)}
    ignored = IGNORED_SETTINGS | {"seed"}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if name not in ignored
    }
