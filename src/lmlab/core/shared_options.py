"""Options that several commands have, and how their strings on the command line are parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from lmlab.core.errors import UserError
from lmlab.core.limits import check_limit
from lmlab.core.options import Option
from lmlab.core.untrusted_input import parse_integer


def parse_settings(pairs: Sequence[str] | None) -> dict[str, str]:
    """Parse `key=value` strings; duplicate keys are an error."""
    settings: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UserError(f"--set must be key=value, as in --set width=256, got {pair!r}.")
        if key in settings:
            raise UserError(f"--set gives {key} twice, {settings[key]} and {value}; give it once.")
        settings[key] = value
    return settings


def parse_positions(text: str) -> tuple[int, ...]:
    """Parse 1,3-5 as 1, 3, 4, 5: token positions without duplicates."""
    positions: list[int] = []
    for part in text.split(","):
        start, dash, end = (bound.strip() for bound in part.partition("-"))
        first, last = parse_integer(start), parse_integer(end if dash else start)
        if first is None or last is None:
            raise UserError(f"--positions must be numbers such as 1,3-5, got {text[:80]!r}.")
        if last < first:
            raise UserError(
                f"a range of --positions must be ascending, as {last}-{first}, got "
                f"{part.strip()!r}."
            )
        check_limit("positions", last, called="--positions")
        positions += range(first, last + 1)
        check_limit("positions", len(positions), called="the number of --positions")
    seen: set[int] = set()
    for position in positions:
        if position in seen:
            raise UserError(f"--positions must name each token once, got {position} twice.")
        seen.add(position)
    return tuple(positions)


def parse_length_range(text: str) -> tuple[int, int]:
    """Parse 5-12 as (5, 12)."""
    minimum, maximum = (parse_integer(part.strip()) for part in text.partition("-")[::2])
    if minimum is None or maximum is None:
        raise UserError(f"--lengths must be a range such as 5-12, got {text!r}.")
    return minimum, maximum


def parse_epochs(text: str) -> list[int]:
    """Parse 10,20 as [10, 20]."""
    words = [word for word in re.split(r"[,\s]+", text) if word]
    numbers = [number for word in words if (number := parse_integer(word)) is not None]
    if len(numbers) < len(words):
        raise UserError(f"--at must be epochs separated by commas, as in --at 10,20, got {text!r}.")
    return numbers


def settings_option(help: str) -> Option:
    """The option `--set KEY=VALUE …`, in Python the mapping `settings`."""
    return Option(help, flag="--set", metavar="KEY=VALUE", parse=parse_settings, repeats=True)


Settings = Mapping[str, Any] | None
Size = Annotated[
    str | None, Option("Size of the system: tiny, small or base.", show_default="small")
]
Recipe = Annotated[str | None, Option("A named set of settings; see lmlab find SYSTEM.")]
TextTokenizer = Annotated[
    str | None,
    Option(
        "Tokenizer: word, char, byte, bpe, wordpiece, or a tokenizer.json.",
        show_default="the corpus's own",
    ),
]
BUDGET = "budget"
"""The family of the budgets."""
Steps = Annotated[int | None, Option("Budget: optimiser steps.", family=BUDGET)]
Minutes = Annotated[
    float | None, Option("Budget: minutes, by the setting clock (wall or cpu).", family=BUDGET)
]
Resume = Annotated[bool, Option("Resume from a checkpoint.")]
Seed = Annotated[int, Option("Random seed.")]
Jobs = Annotated[int, Option("Number of trainings run in parallel.")]
Errors = Annotated[
    Literal["strict", "replace"],
    Option("Bytes that are not UTF-8: strict stops at one, replace goes on and counts them."),
]
RunErrors = Annotated[
    Literal["strict", "replace"] | None,
    Option(
        "Bytes that are not UTF-8: strict stops at one, replace goes on and counts them.",
        show_default="as the run was trained; strict for a new one",
    ),
]
SplitName = Annotated[Literal["train", "validation", "test"], Option("Split of the corpus.")]


def no_progress(*progress: object) -> None:
    """The default of `progress`: nothing is shown."""
