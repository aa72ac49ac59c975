"""Mistakes that a user can mend, told in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """What was expected, what came, what to do: one sentence, shown without a traceback."""


def nearest(name: str, options: Iterable[str], most: int = 3) -> list[str]:
    """The options that look most like a mistyped name, best first."""
    by_lower = {option.lower(): option for option in options}
    found = difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=0.5)
    return [by_lower[match] for match in found]


def unknown_name(what: str, name: str, options: Iterable[str]) -> UserError:
    """The error for a name that is not there; it names the nearest ones that are."""
    options = sorted(options)
    close = nearest(name, options)
    if close:
        hint = "did you mean " + " or ".join(repr(option) for option in close) + "?"
    elif len(options) <= 12:
        hint = "choose from " + ", ".join(options) + "."
    else:
        hint = "none of the known names looks like it."
    return UserError(f"there is no {what} called {name!r}; {hint}")
