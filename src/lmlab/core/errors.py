"""User errors and warnings in one sentence, suggestions for mistyped names, safe output."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 without tab and line feed, DEL, C1, bidirectional embeddings, overrides and isolates."""
NOT_ESCAPED_BY_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Those of them that `json.dumps(ensure_ascii=False)` writes as they are."""
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet takes for a formula."""


def escape_control_characters(text: str) -> str:
    r"""The text with each hidden character as an escape: `\x1b`, `\u202e`; tab and \n stay."""
    return CONTROL_CHARACTERS.sub(_escape, text)


def escape_control_characters_in_json(document: str) -> str:
    r"""A JSON document with the hidden characters of its strings as `\u009b`: the same values."""
    return NOT_ESCAPED_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def escape_csv_cell(text: str) -> str:
    """A text as a cell of a CSV file: no formula to a spreadsheet, no hidden character.

    An apostrophe before `=`, `+`, `-` or `@` makes a spreadsheet show the cell as text.
    """
    return escape_control_characters(f"'{text}" if text.startswith(FORMULA_PREFIXES) else text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class UserError(Exception):
    """What was expected, what was given, what to do: one sentence, shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython and notebooks show of it; `traceback.print_last()` has the stack."""
        return [f"lmlab: {escape_control_characters(str(self))}"]


class LmlabWarning(UserWarning):
    """A warning of one sentence that stops nothing."""


MIN_SIMILARITY, TYPO_SIMILARITY = 0.5, 0.8
"""Minimum similarity of a suggested name, and of one that is surely meant."""


def nearest_names(
    name: str, options: Iterable[str], max_names: int = 3, cutoff: float = MIN_SIMILARITY
) -> list[str]:
    """The options most similar to a mistyped name, best first."""
    by_lower = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=max_names, cutoff=cutoff)
    return [by_lower[match] for match in matches]


def unknown_name(kind: str, name: str, options: Iterable[str], see: str = "") -> UserError:
    """The error for an unknown name, with the nearest known ones.

    `see` is a command that lists all names.
    """
    options = sorted(options)
    similar = nearest_names(name, options)
    if similar:
        hint = _did_you_mean(similar) + (f" {see} lists them all." if see else "")
    elif see:
        hint = f"{see} lists all names."
    elif len(options) <= 12:
        hint = "choose from " + ", ".join(options) + "."
    else:
        hint = "no known name is similar."
    return UserError(f"there is no {kind} called {name!r}; {hint}")


def looks_like_path(spec: str) -> bool:
    """Whether a string is written as a file or folder (a slash or a dot), not as a name."""
    return "/" in spec or os.sep in spec or "." in spec


def unknown_name_or_path(kind: str, spec: str, options: Iterable[str], see: str = "") -> UserError:
    """The error for a string that may be a built-in name or a path, and is neither.

    One that looks like a path is a missing file, or one of another kind, not a mistyped name.
    """
    if looks_like_path(spec) and os.path.exists(spec):
        return UserError(f"{spec} is no {kind}; choose from {', '.join(sorted(options))}.")
    if looks_like_path(spec):
        return UserError(f"there is no file or folder {spec}; check the path.")
    return unknown_name(kind, spec, options, see)


def unknown_choice(kind: str, name: str, descriptions: Mapping[str, str]) -> UserError:
    """The same for few names that people call differently: `descriptions` explain them.

    A typo gets the name that was meant, any other word all names with their descriptions, since a
    similar one may be wrong.
    """
    similar = nearest_names(name, descriptions, cutoff=TYPO_SIMILARITY)
    choices = ", ".join(f"{option} ({description})" for option, description in descriptions.items())
    hint = _did_you_mean(similar) if similar else f"choose from {choices}."
    return UserError(f"there is no {kind} called {name!r}; {hint}")


def _did_you_mean(similar: Iterable[str]) -> str:
    return "did you mean " + " or ".join(repr(option) for option in similar) + "?"
