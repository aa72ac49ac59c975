"""The specification of a sweep: what is trained, what varies, how it is searched and selected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from lmlab.core.config_files import read_config_file
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.limits import check_limit
from lmlab.core.untrusted_input import check_seed, check_type, check_whole_number
from lmlab.experiments.pruning import PRUNING_METHODS, PruningOptions
from lmlab.experiments.search import SEARCH_METHODS, SearchMethod
from lmlab.experiments.search_space import Choice, Dimension, parse_dimension

FIXED_OPTIONS: Mapping[str, Any] = {
    "size": str,
    "tokenizer": str,
    "source_tokenizer": str,
    "objective": str,
    "recipe": str,
    "base": str,
    "encoder": str,
    "teacher": str,
    "documents": str,
    "knowledge": str,
    "epochs": int,
    "steps": int,
    "minutes": float,
    "data_seed": int,
    "errors": str,
}
"""Options of `lmlab train` that a spec may fix, with their types."""
VARIED_OPTIONS = ("size", "tokenizer", "source_tokenizer", "objective", "recipe")
"""Those that the space may vary, beside settings."""
SYSTEM = "system"
EXTENDABLE = ("trials", "hours")
"""What may differ when a sweep is continued."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How points are proposed."""

    method: SearchMethod = "random"
    startup_trials: int = 10
    """Random trials before TPE begins."""


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """A sweep, checked for form; `plan_sweep` checks it against systems and data."""

    systems: tuple[str, ...]
    data: str
    space: tuple[Dimension, ...]
    """What varies; the systems first, if there are several."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fixed settings of the systems and of the training."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fixed options of `lmlab train`."""
    search: SearchOptions = SearchOptions()
    trials: int | None = None
    """Budget: the number of trials; a grid has as many as points."""
    hours: float | None = None
    """Budget: no trial starts later."""
    seeds: tuple[int, ...] = (0,)
    """The trainings of a trial, whose mean counts."""
    seed: int = 0
    """Of the search."""
    select: str = "loss"
    """loss (validation), or a metric of `lmlab compare`, computed on the validation split."""
    prune: PruningOptions | None = None
    threads: int = 1
    """CPU threads of each training."""
    concurrency: int = 4
    """How many trials may be under way at once where one depends on earlier ones (TPE, pruning):
    trial n starts when those up to n - concurrency are done, and knows these alone."""

    def record(self) -> dict[str, Any]:
        """What must stay the same when a sweep is continued, as plain data."""
        return dict(json.loads(json.dumps(asdict(self))))


SPEC_KEYS = (
    *("system", "data", "space", "settings", "search", "trials", "hours", "seeds", "seed"),
    *("select", "prune", "threads", "concurrency", *FIXED_OPTIONS),
)


def read_spec(spec: str | Path | Mapping[str, Any]) -> SweepSpec:
    """The spec in a YAML, TOML or JSON file, or in a mapping."""
    values = spec if isinstance(spec, Mapping) else read_config_file(spec)
    for key in values:
        if key not in SPEC_KEYS:
            raise _unknown_key(str(key))
    for key in ("system", "data", "space"):
        if not values.get(key):
            raise UserError(f"the spec has no {key}; a sweep needs system, data and space.")
    systems = _systems(values["system"])
    return SweepSpec(
        systems=systems,
        data=_typed("data", str(values["data"]), str),
        space=_space(values, systems),
        settings=_mapping("settings", values.get("settings") or {}),
        options={
            name: _typed(name, values[name], kind)
            for name, kind in FIXED_OPTIONS.items()
            if values.get(name) is not None
        },
        **_search_options(values),
        seeds=_seeds(values.get("seeds", 1)),
        seed=check_seed(values.get("seed", 0)),
        select=_typed("select", values.get("select", "loss"), str),
        prune=_prune(values.get("prune")),
        threads=_count("threads", values.get("threads", 1)),
        concurrency=_count("concurrency", values.get("concurrency", 4)),
    )


def _unknown_key(key: str) -> UserError:
    from lmlab.training.setting_records import training_settings

    if key.replace("-", "_") in {record.name for record in training_settings()}:
        return UserError(
            f"{key} is a setting; put it under settings, or under space with the values to try."
        )
    return unknown_name("part of a sweep's spec", key, SPEC_KEYS)


def _typed(name: str, value: Any, hint: Any) -> Any:
    try:
        check_type(name, value, hint)
    except ValueError as error:
        raise UserError(f"{error}.") from None
    return value


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{name} must be a mapping (name: value), got {value!r}.")
    return {str(key).strip().replace("-", "_"): item for key, item in value.items()}


def _count(name: str, value: Any) -> int:
    check_whole_number(name, value)
    return int(value)


def _systems(value: Any) -> tuple[str, ...]:
    systems = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(system, str) for system in systems):
        raise UserError(f"system must be a name or a list of names, got {value!r}.")
    if len(set(systems)) < len(systems):
        raise UserError(f"system names one twice ({', '.join(systems)}); name each once.")
    return systems


def _space(values: Mapping[str, Any], systems: tuple[str, ...]) -> tuple[Dimension, ...]:
    space = _mapping("space", values["space"])
    given = {key for key, value in values.items() if value is not None}
    fixed = {*_mapping("settings", values.get("settings") or {}), *given} - {"space", "settings"}
    for name in space:
        if name == SYSTEM:
            raise UserError("several systems are a list under system, not a part of the space.")
        if name in ("seed", "seeds"):
            raise UserError("seeds repeat every trial; give their number by seeds: 3.")
        if name in fixed:
            raise UserError(f"{name} is both fixed and in the space; remove one of them.")
        if name in FIXED_OPTIONS and name not in (*VARIED_OPTIONS, "epochs", "steps", "minutes"):
            raise UserError(
                f"{name} can't be varied; the space takes settings, {', '.join(VARIED_OPTIONS)}."
            )
    several = [Choice(name=SYSTEM, values=systems)] if len(systems) > 1 else []
    return (*several, *(parse_dimension(name, spec) for name, spec in space.items()))


def _search_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """search, trials and hours, which belong together."""
    given = values.get("search", "random")
    record = {"method": given} if isinstance(given, str) else _mapping("search", given)
    _check_keys("search", record, SearchOptions)
    method = record.get("method", "random")
    if method not in SEARCH_METHODS:
        raise unknown_name("search method", str(method), SEARCH_METHODS)
    trials, hours = values.get("trials"), values.get("hours")
    if trials is not None:
        check_limit("trials", _count("trials", trials), called="the number of trials")
    if hours is not None and (not _is_number(hours) or not hours > 0):
        raise UserError(f"hours must be positive, got {hours!r}; try 2.")
    if method == "grid" and trials is not None:
        raise UserError("a grid has as many trials as points; remove trials, or search random.")
    if method != "grid" and trials is None and hours is None:
        raise UserError(f"search {method} needs a budget; give trials: 20, or hours: 2.")
    startup = _count("startup_trials", record.get("startup_trials", 10))
    search = SearchOptions(method=cast(SearchMethod, method), startup_trials=startup)
    return {"search": search, "trials": trials, "hours": hours}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _seeds(value: Any) -> tuple[int, ...]:
    """A number of seeds from 0, or their list."""
    if isinstance(value, (list, tuple)):
        seeds = tuple(check_seed(seed) for seed in value)
        if not seeds or len(set(seeds)) < len(seeds):
            raise UserError(f"seeds must be a number or a list of different ones, got {value!r}.")
        return seeds
    check_limit("seeds", _count("seeds", value), called="the number of seeds")
    return tuple(range(value))


def _prune(value: Any) -> PruningOptions | None:
    if value is None or value is False or value == "none":
        return None
    record = {"method": value} if isinstance(value, str) else _mapping("prune", value)
    _check_keys("prune", record, PruningOptions)
    method = record.get("method", "median")
    if method not in PRUNING_METHODS:
        raise unknown_name("pruning method", str(method), ("none", *PRUNING_METHODS))
    for name, minimum in (("startup_trials", 1), ("warmup", 0), ("factor", 2)):
        if name in record:
            check_whole_number(name, record[name], minimum=minimum)
    return PruningOptions(**record)


def _check_keys(part: str, record: Mapping[str, Any], kind: type) -> None:
    names = [spec.name for spec in fields(kind)]
    for key in record:
        if key not in names:
            raise unknown_name(f"part of {part}", key, names)
