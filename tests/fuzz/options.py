"""Commands from the option space of every verb, mostly valid ones.

Verbs and options are read from the typer app itself, so that a new one takes part at once; what a
value may be is said here by the option's name, and by its type where nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import typer

from tests.fuzz.scenarios import NEVER, SCENARIOS, VALUES, Scenario

STRANGE = 0.06
"""Share of values that are sampled from `ODD`, whatever the option."""
BUDGETS = ("--steps", "--epochs")
"""How long a training or a chain is: any number is allowed."""
UNFIT = 0.04
"""Share of options taken that the scenario does not list."""
ODD: tuple[str, ...] = (
    *("-1", "0", "1.5", "nan", "inf", "1e309", "2147483648", "9" * 30, "9" * 5000, "²", "", " "),
    *("\udcff", "\0x".strip("\0"), "../nothing", "/dev/null", ".", "none", "a=b", "🍐", "<mask>"),
    *("[", "{}", "--", "x" * 3000),
)


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a verb, as the parser knows it."""

    name: str
    flag: bool
    multiple: bool


@cache
def verbs() -> dict[str, tuple[Option, ...]]:
    """Every verb ("index build" is one) with its options."""
    from lmlab.cli.main import app

    return dict(_walk(typer.main.get_command(app), ()))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, tuple[Option, ...]]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _walk(inner, (*path, name))
        return
    yield (
        " ".join(path),
        tuple(
            Option(
                name=max(each.opts, key=len),
                flag=bool(getattr(each, "is_flag", False)),
                multiple=bool(getattr(each, "multiple", False)),
            )
            for each in command.params
            if each.param_type_name == "option" and "--help" not in each.opts
        ),
    )


def has_option(arguments: Sequence[str], option: str) -> bool:
    """Whether the verb of a command has an option."""
    for verb in (" ".join(arguments[:2]), arguments[0]):
        if verb in verbs():
            return option in {each.name for each in verbs()[verb]}
    return False


@dataclass(frozen=True, kw_only=True)
class Command:
    """One input: a verb with random options."""

    verb: str
    arguments: tuple[str, ...]
    """With {world} and {out} for the folders."""
    stdin: str = ""


def draw_command(verb: str, draw: Random) -> Command:
    """A command of a verb: one of its scenarios, with up to four more options."""
    scenario = draw.choice(SCENARIOS.get(verb, (Scenario(arguments=()),)))
    before = ("", *scenario.arguments)
    arguments = [
        _odd(draw, of) if draw.random() < STRANGE / 4 and "{" not in each else each
        for of, each in zip(before, scenario.arguments, strict=False)
    ]
    fitting = [each for each in verbs()[verb] if each.name in scenario.options]
    others = [
        each
        for each in verbs()[verb]
        if each not in fitting and each.name not in NEVER and each.name not in scenario.arguments
    ]
    for _ in range(draw.randint(0, 4)):
        pool = others if others and (not fitting or draw.random() < UNFIT) else fitting
        if not pool:
            break
        option = draw.choice(pool)
        if option.multiple or option.name not in arguments:
            arguments += _written(verb, option, draw)
    return Command(verb=verb, arguments=(*verb.split(), *arguments), stdin=scenario.stdin)


def _written(verb: str, option: Option, draw: Random) -> list[str]:
    if option.flag:
        return [option.name]
    value: str | Callable[[Random], str]
    choices = VALUES.get(f"{verb} {option.name}") or VALUES.get(option.name) or ("1", "2", "text")
    value = _odd(draw, option.name) if draw.random() < STRANGE else draw.choice(choices)
    return [option.name, value]


def _odd(draw: Random, option: str) -> str:
    """A strange value; no number of steps that takes days, which is no mistake."""
    value = draw.choice(ODD)
    return "0" if option in BUDGETS and value.isdigit() else value
