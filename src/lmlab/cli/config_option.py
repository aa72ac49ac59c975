"""`--config FILE` and `--print-config`, for any command made of a verb (`terminal`).

The file's values take part before the parser asks for what is missing, so that a file may hold what
the command requires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.output import print
from lmlab.core.option_files import is_settings, merge_options, options_from_file
from lmlab.core.options import DeclaredOption, declared_options

if TYPE_CHECKING:
    from lmlab.training.setting_records import SettingRecord

Verb = Callable[..., Any]
CONFIG_OPTIONS = ("config", "print_config")
FILE_VALUES, PRINTS = "lmlab.config", "lmlab.print_config"
"""Where a command's context keeps the options of the file, and whether they are to be printed."""


def config_parameters(verb: Verb) -> list[Parameter]:
    """The parameters `--config` and `--print-config` of a command of this verb."""

    def read(context: typer.Context, file: str | None) -> str | None:
        if file is not None:
            values = options_from_file(Path(file), verb)
            context.meta[FILE_VALUES] = values
            _satisfy(context, verb, values)
        return file

    def prints(context: typer.Context, wanted: bool) -> bool:
        if wanted:
            context.meta[PRINTS] = True
            _satisfy(context, verb, [option.name for option in declared_options(verb)])
        return wanted

    config = typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=read,
        help="Read options from a YAML, TOML or JSON file, or a run's config.json; options given "
        "besides override it.",
    )
    print_config = typer.Option(
        "--print-config",
        is_eager=True,
        callback=prints,
        help="Print the options as a YAML file for --config, with the help of each, and stop.",
    )
    kinds: dict[str, tuple[Any, Any]] = {
        "config": (Annotated[str | None, config], None),
        "print_config": (Annotated[bool, print_config], False),
    }
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in kinds.items()
    ]


def _satisfy(context: typer.Context, verb: Verb, names: Iterable[str]) -> None:
    """Let the parser find required options that a file gives; their values come later."""
    required = {o.name for o in declared_options(verb) if o.default is Parameter.empty}
    placeholders: dict[str, Any] = {
        option.name: [""] if _is_list(option) else ""
        for option in declared_options(verb)
        if option.name in required & set(names)
    }
    context.default_map = {**(context.default_map or {}), **placeholders}


def _is_list(option: DeclaredOption) -> bool:
    from lmlab.cli.terminal import terminal_type

    return bool(terminal_type(option) == list[str])


def with_file_options(
    verb: Verb, context: Any, values: dict[str, Any], given: Iterable[str]
) -> dict[str, Any]:
    """The values of a command, with those of the file for what was not given."""
    chosen = {name: values[name] for name in given if name in values}
    merged = merge_options(verb, file_options(context), chosen)
    return {**values, **merged}


def file_options(context: Any) -> Mapping[str, Any]:
    """The options that the file of a command gives; none without one."""
    values: Mapping[str, Any] = context.meta.get(FILE_VALUES, {})
    return values


def prints_config(context: Any) -> bool:
    """Whether the command prints its options instead of using them."""
    return bool(context.meta.get(PRINTS))


def print_options(
    verb: Verb, context: Any, values: Mapping[str, Any], given: Iterable[str]
) -> None:
    """Print the options of a command as a YAML file for `--config`."""
    named = {*given, *file_options(context)}
    chosen = {name: values[name] for name in named if name in values}
    print("\n".join(config_lines(verb, chosen)))


def config_lines(verb: Verb, chosen: Mapping[str, Any]) -> list[str]:
    """The lines of a YAML file: options with their help, those not chosen as comments."""
    lines = [f"# lmlab {verb.__name__} --config FILE; options given besides override this file."]
    for option in declared_options(verb):
        lines += ["", f"# {option.option.help}"]
        if is_settings(option):
            lines += _settings_lines(option.name, chosen)
            continue
        required = option.default is Parameter.empty
        value = chosen.get(option.name, None if required else option.default)
        shown = option.option.metavar or option.name.upper() if required else _scalar(value)
        if option.name in chosen:
            lines.append(f"{option.name}: {_scalar(chosen[option.name])}")
        elif option.option.show_default is not None:
            lines.append(f"# {option.name}:  # default: {option.option.show_default}")
        else:
            lines.append(f"# {option.name}: {shown}" + ("  # required" if required else ""))
    return lines


def _settings_lines(name: str, chosen: Mapping[str, Any]) -> list[str]:
    """The settings that the verb's system or task has, those not chosen as comments."""
    own: Mapping[str, Any] = chosen.get(name) or {}
    lines = [f"{name}:"]
    for record in _setting_records(chosen):
        # A choice's values are in its help or its list; a number's range is not.
        remarks = ", ".join(filter(None, [" | ".join(record.choices), record.bounds]))
        lines.append(f"  # {record.help}" + (f" ({remarks})" if remarks else ""))
        comment = "" if record.name in own else "# "
        value = own.get(record.name, record.sizes.get(str(chosen.get("size")), record.default))
        text = value if _is_number(value) else _scalar(value)  # --set gives texts
        lines.append(f"  {comment}{_scalar(record.name)}: {text}")
    return lines


def _setting_records(chosen: Mapping[str, Any]) -> list[SettingRecord]:
    from lmlab.tasks.setting_listing import settings

    if "task" in chosen:
        return settings(task=chosen["task"])
    return settings(chosen.get("system"), recipe=chosen.get("recipe"))


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value) is not None


AMBIGUOUS = frozenset(
    {"", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".inf", ".nan"}
)
"""Words that some YAML reader takes for something else than a text."""
PLAIN_SIGNS = frozenset("_-./")


def _scalar(value: Any) -> str:
    """A value as YAML; texts that a reader could take for something else are quoted."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {_scalar(v)}" for k, v in value.items()) + "}"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    text = str(value)
    plain = all(char.isalnum() or char in PLAIN_SIGNS for char in text)
    letter = text[:1].isalpha() or text[:1] == "/"
    quoted = not plain or not letter or text.lower() in AMBIGUOUS
    return json.dumps(text, ensure_ascii=False) if quoted else text
