"""Ablation switches: the numbered and named terms of a system that can be removed.

A system declares their names on its card, in the order of their numbers; the field `off` of its
config has the numbers of the removed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer


def parse_switches(
    selection: Iterable[int | str] | str, switches: Sequence[str], *, of: str = "this system"
) -> tuple[int, ...]:
    """Switches given by number or by name, as sorted distinct numbers.

    `selection` may be a text like "4,6" or "gate-input,5"; "", "-1" and "none" are none.
    """
    parts = selection.split(",") if isinstance(selection, str) else list(selection)
    words = [str(part).strip().lower().replace("_", "-") for part in parts]
    words = [word for word in words if word]
    if not words or words in (["-1"], ["none"], ["intact"]):
        return ()
    if not switches:
        raise UserError(f"{of} has no switches, so {','.join(words)} can't be switched off.")
    return tuple(sorted({_switch_number(word, switches, of) for word in words}))


def parse_switch_sets(
    text: str, switches: Sequence[str], *, of: str = "this system"
) -> list[tuple[int, ...]]:
    """Several sets separated by semicolons, "4;0,4,5;4,6", in their order, without duplicates."""
    sets = [parse_switches(part, switches, of=of) for part in text.split(";")]
    return list(dict.fromkeys(sets))


def describe_switches(off: Iterable[int], switches: Sequence[str], *, none: str = "intact") -> str:
    """A set in words: "4 candidate-hidden, 6 keep"; `none` if it is empty."""
    return ", ".join(f"{number} {switches[number]}" for number in off) or none


def _switch_number(word: str, switches: Sequence[str], of: str) -> int:
    if word in switches:
        return switches.index(word)
    number = parse_integer(word)
    if number is not None and number < len(switches):
        return number
    listed = describe_switches(range(len(switches)), switches)
    raise UserError(f"{of} has no switch {word!r}; it has {listed}.")
