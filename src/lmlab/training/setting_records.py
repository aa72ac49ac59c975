"""Setting records: everything that `--set name=value` takes, with type, default and help.

Listing the training settings does not import torch; listing those of a system does.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lmlab.training.config import TrainingConfig


def field_help(config: type) -> dict[str, str]:
    """The docstring under each field of a config, those it inherits included."""
    help_texts: dict[str, str] = {}
    for owner in reversed(config.__mro__[:-1]):
        definition = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for definition_line, below in zip(definition.body, definition.body[1:], strict=False):
            match definition_line, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    help_texts[name] = " ".join(text.split())
    return help_texts


Part = Literal["training", "system", "task"]
DEFAULT_SIZE = "small"
BOUND_SIGNS = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}


@dataclass(frozen=True, kw_only=True)
class SettingRecord:
    """One setting that `--set name=value` takes."""

    name: str
    part: Part
    """Whether it belongs to the training, to the system or to a fine-tuning task."""
    type: str
    """As Python writes it: float, int | None, tuple[int, ...]; `choices` for a choice."""
    default: Any
    """The default value; for a system's setting, that of size small."""
    help: str
    """One sentence on what it does: the docstring of the config's field."""
    choices: tuple[str, ...] = ()
    """All allowed values, where they are few."""
    bounds: str = ""
    """The range of a number, as in `> 0, < 1`."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """The default at each size, for a system's setting."""

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return asdict(self)


def training_settings(defaults: TrainingConfig | None = None) -> list[SettingRecord]:
    """The settings of every training, optionally with other `defaults`."""
    return config_settings("training", defaults or TrainingConfig())


def system_settings(
    system: str | Path | types.ModuleType, recipe: str | None = None
) -> list[SettingRecord]:
    """A system's own settings, then the training's, with the values that `train` starts from."""
    # Imported lazily: a system's config needs torch, the training's does not.
    from lmlab.core.registry import system_module
    from lmlab.core.system_files import resolve_system
    from lmlab.training.training_plan import make_training_plan

    card = resolve_system(system)
    sizes = system_module(card.name).SIZES
    plans = {size: make_training_plan(card, size, recipe, {}, {}, seed=0) for size in sizes}
    configs = {size: plan.system_config for size, plan in plans.items()}
    system_records = config_settings("system", configs[DEFAULT_SIZE], configs)
    return [*system_records, *training_settings(plans[DEFAULT_SIZE].training)]


def config_settings(
    part: Part, config: Any, sizes: Mapping[str, Any] | None = None
) -> list[SettingRecord]:
    """A record for each field of a config, in the order of the fields."""
    helps, hints = field_help(type(config)), get_type_hints(type(config))
    return [
        SettingRecord(
            name=spec.name,
            part=part,
            type=type_name(hints[spec.name]),
            default=getattr(config, spec.name),
            help=helps.get(spec.name, ""),
            choices=choices_of(hints[spec.name]),
            bounds=", ".join(
                f"{sign} {spec.metadata[bound]}"
                for bound, sign in BOUND_SIGNS.items()
                if bound in spec.metadata
            ),
            sizes={size: getattr(sized, spec.name) for size, sized in (sizes or {}).items()},
        )
        for spec in fields(config)
    ]


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values of a Literal, also of one that may be None."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(choice for option in get_args(hint) for choice in choices_of(option))
    return ()


def type_name(hint: Any) -> str:
    """A type as Python writes it; the values of a Literal are `str` here and stand in `choices`."""
    if get_origin(hint) is Literal:
        return " | ".join(dict.fromkeys(type(value).__name__ for value in get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_name(option) for option in get_args(hint)))
    if get_origin(hint) is tuple:
        names = ("..." if arg is Ellipsis else type_name(arg) for arg in get_args(hint))
        return f"tuple[{', '.join(names)}]"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def format_value(value: object, *, empty: str = "none") -> str:
    """A value in `--set` syntax; `empty` stands for an empty list."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(format_value, value)) or empty
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
