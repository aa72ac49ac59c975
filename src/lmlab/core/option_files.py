"""Options of a verb from a file (`--config`): YAML, TOML, JSON, or the config.json of a run.

The keys are the options' names, with `settings` (or `set`) for `--set`. What a caller gives besides
overrides the file, a setting at a time; a budget replaces all budgets of the file. The signature of
the verb decides what is known, so that any verb can be given by a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_origin

from lmlab.core.data_files import read_data_file
from lmlab.core.errors import TYPO_SIMILARITY, UserError, nearest_names, unknown_name
from lmlab.core.options import DeclaredOption, declared_options, union_members
from lmlab.core.run_options import run_options
from lmlab.core.system_files import is_system_file
from lmlab.core.untrusted_input import check_type

Verb = Callable[..., Any]
SETTINGS = "settings"
RUN_CONFIG = "config.json"
"""The file of a run, which may be somebody else's."""


def options_from_file(path: Path, verb: Verb) -> dict[str, Any]:
    """The keywords of a verb that a file gives; a UserError for the first that is wrong."""
    values = read_data_file(path)
    declared = {option.name: option for option in declared_options(verb)}
    is_run = "format" in values and "system_config" in values
    if is_run or path.name == RUN_CONFIG:
        _check_names_no_file(path, values.get("system"))
    if is_run:
        values = run_options(values, declared.keys(), path)
    names = {option.flag.split()[0].removeprefix("--"): name for name, option in declared.items()}
    keywords: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        name = name if name in declared else names.get(key.replace("_", "-"), name)
        if name not in declared:
            raise _unknown_key(path, key, declared, verb)
        if name in keywords:
            raise UserError(f"{path} gives {name} twice; give it once.")
        if value is not None:
            keywords[name] = _checked(path, declared[name], value)
    return keywords


def _check_names_no_file(path: Path, system: Any) -> None:
    """A UserError if a run's config names its system by a path, which would be executed."""
    if isinstance(system, str) and is_system_file(system):
        raise UserError(
            f"{path} gives its system as the file {system!r}, and a run names no files to execute; "
            "restore it, or rename it if it is your own."
        )


def merge_options(
    verb: Verb, from_file: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a file, overridden by those that are given besides."""
    declared = declared_options(verb)
    settings = given.get(SETTINGS) or {}
    named = {*given, *(str(key).replace("-", "_") for key in settings)}
    replaced = {
        option.name
        for option in declared
        if option.option.family and named & _family(declared, option.option.family)
    }
    kept = {name: value for name, value in from_file.items() if name not in replaced}
    if isinstance(kept.get(SETTINGS), Mapping):
        own = {key: value for key, value in kept[SETTINGS].items() if key not in replaced}
        own |= {str(key).replace("-", "_"): value for key, value in settings.items()}
        kept[SETTINGS] = own
        given = {name: value for name, value in given.items() if name != SETTINGS}
    return {**kept, **given}


def _family(declared: Collection[DeclaredOption], family: str) -> set[str]:
    return {option.name for option in declared if option.option.family == family}


def _unknown_key(
    path: Path, key: str, declared: Mapping[str, DeclaredOption], verb: Verb
) -> UserError:
    if SETTINGS in declared and not nearest_names(key, declared, cutoff=TYPO_SIMILARITY):
        return UserError(
            f"{path}: there is no option of {verb.__name__} called {key!r}; settings such as "
            "learning_rate stand below settings:."
        )
    return UserError(f"{path}: {unknown_name(f'option of {verb.__name__}', key, declared)}")


def _checked(path: Path, declared: DeclaredOption, value: Any) -> Any:
    """A value as the verb takes it; a UserError with the file's name where it can't."""
    if is_settings(declared):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise UserError(f"{path}: {declared.name} must hold names with values, got {value!r}.")
        return {key.replace("-", "_"): _as_tuple(inner) for key, inner in value.items()}
    if isinstance(value, str):
        if declared.option.parse is not None:
            return declared.option.parse([value] if declared.option.repeats else value)
        value = _number(declared, value)
    if declared.choices and str(value) not in declared.choices:
        raise UserError(
            f"{path}: {unknown_name(f'value of {declared.name}', str(value), declared.choices)}"
        )
    try:
        check_type(declared.name, value, declared.hint)
    except ValueError as error:
        raise UserError(f"{path}: {error}.") from None
    _check_range(path, declared, value)
    return value


def is_settings(declared: DeclaredOption) -> bool:
    """Whether an option takes names with values (`--set`)."""
    kinds = [get_origin(member) for member in union_members(declared.hint)]
    return any(isinstance(kind, type) and issubclass(kind, Mapping) for kind in kinds)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _number(declared: DeclaredOption, text: str) -> Any:
    """A number written as a text, where the option is one; else the text."""
    members = union_members(declared.hint)
    for kind in (int, float):
        if kind in members and str not in members:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def _check_range(path: Path, declared: DeclaredOption, value: Any) -> None:
    low, high = declared.option.minimum, declared.option.maximum
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{path}: {declared.name} must be {bounds}, got {value}.")
