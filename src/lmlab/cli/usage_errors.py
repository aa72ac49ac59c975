"""Usage errors of the argument parser as plain sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from lmlab.core.errors import TYPO_SIMILARITY, UserError, nearest_names
from lmlab.core.registry import find_system

NUMBER_KINDS = {"int": "a whole number", "float": "a number"}
"""By prefix of pydantic's error name (int_parsing, float_type …)."""
CLICK_NUMBER_ERROR = re.compile(r"'(?P<value>.*)' is not a valid (?P<kind>int|float)", re.DOTALL)
"""Typer's own messages, without pydantic."""


def numeric_error_sentence(error: Any) -> str | None:
    """`--steps must be a whole number, got abc.`; None for other errors."""
    option = _option_name(error)
    cause: Any = getattr(error, "__cause__", None)
    if option and hasattr(cause, "errors"):
        [first, *_] = cause.errors()
        kind = str(first.get("type", "")).partition("_")[0]
        if kind in NUMBER_KINDS:
            return f"{option} must be {NUMBER_KINDS[kind]}, got {first.get('input')}."
    match = CLICK_NUMBER_ERROR.search(str(getattr(error, "message", "")))
    if option and match is not None:
        return f"{option} must be {NUMBER_KINDS[match['kind']]}, got {match['value']}."
    return None


def _option_name(error: Any) -> str:
    """The option or argument of an error, as written."""
    names = list(getattr(getattr(error, "param", None), "opts", []))
    return next((name for name in names if name.startswith("--")), names[0] if names else "")


MIN_SIMILARITY = 0.6
"""Minimum similarity of a suggested option: --learning-rate is no typo of --minutes."""
FINETUNE, SHOW_OBJECTIVE = "finetune", "show-objective"
"""Commands whose --set takes other settings: of a task, or of the system alone."""


def usage_error_sentence(error: Any, arguments: Sequence[str] = ()) -> str:
    """A parser error as one sentence that points to the help."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "lmlab")
    option = getattr(error, "option_name", None)
    known = [name for p in context.command.params for name in p.opts] if context else []
    if option is not None and option not in known:
        return unknown_option_sentence(str(option), command, known, arguments)
    if (sentence := numeric_error_sentence(error)) is not None:
        return sentence
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see {command} --help."


def unknown_option_sentence(
    option: str, command: str, known: Sequence[str], arguments: Sequence[str]
) -> str:
    """A suggestion for an option that a command does not have."""
    names = [name.removeprefix("--") for name in known if name.startswith("--")]
    bare_name = option.lstrip("-")
    typos = nearest_names(bare_name, names, cutoff=TYPO_SIMILARITY)
    close = " or ".join(
        f"--{name}" for name in typos or nearest_names(bare_name, names, cutoff=MIN_SIMILARITY)
    )
    sentence = f"{command} has no option {option}"
    guess = f"{sentence}; did you mean {close}?" if close else f"{sentence}; see {command} --help."
    if "--set" not in known:
        return guess
    settings, see = settable_names(arguments)
    setting, value = bare_name.replace("-", "_"), _option_value(option, arguments)
    if setting in settings:
        return f"{sentence}; it is a setting: --set {setting}={value}."
    similar = nearest_names(setting, settings, max_names=1, cutoff=TYPO_SIMILARITY)
    if similar and not typos:
        return f"{sentence}; did you mean the setting --set {similar[0]}={value}?"
    return guess if close else f"{sentence}; {see} lists the settings that --set takes."


def settable_names(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Names that `--set` takes in this command, and the command that lists them."""
    from lmlab.tasks.setting_listing import settings

    scope: dict[str, str] = {}
    if "--task" in arguments[:-1]:
        scope = {"task": arguments[arguments.index("--task") + 1]}
    elif arguments[0] != FINETUNE:
        systems = [name for name in map(_system_name, arguments[1:]) if name]
        scope = {"system": systems[0]} if systems else {}
    try:
        records = settings(**scope)
    except UserError:  # no such task: the command itself reports it
        scope, records = {}, settings()
    if arguments[0] == SHOW_OBJECTIVE:
        records = [record for record in records if record.part == "system"]
    options = {"task": "--task {}", "system": "{}"}
    words = [options[option].format(name) for option, name in scope.items()]
    return [record.name for record in records], " ".join(["lmlab settings", *words])


def _system_name(argument: str) -> str:
    """The system of that name or alias, "" if there is none."""
    with suppress(UserError):
        return find_system(argument).name
    return ""


def _option_value(option: str, arguments: Sequence[str]) -> str:
    """The value of an option, as in `--name value` or `--name=value`."""
    for index, argument in enumerate(arguments):
        if argument.startswith(option + "="):
            return argument.partition("=")[2]
        if argument == option and index + 1 < len(arguments):
            following = arguments[index + 1]
            # A negative number is a value, another option is not.
            if not following.startswith("-") or following[1:2].isdigit():
                return following
    return "VALUE"
