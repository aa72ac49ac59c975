"""Numbers that the argument parser could not read, in a sentence of ours."""

from __future__ import annotations

import re
from typing import Any

KINDS = {"int": "a whole number", "float": "a number"}
"""By how the name of pydantic's error begins (int_parsing, float_type …)."""
CLICK = re.compile(r"'(?P<value>.*)' is not a valid (?P<kind>int|float)", re.DOTALL)
"""What typer says where it does not ask pydantic."""


def number_sentence(error: Any) -> str | None:
    """`--steps must be a whole number, got abc.`; None where an error is about something else."""
    option = _option(error)
    cause: Any = getattr(error, "__cause__", None)
    if option and hasattr(cause, "errors"):
        [first, *_] = cause.errors()
        kind = str(first.get("type", "")).partition("_")[0]
        if kind in KINDS:
            return f"{option} must be {KINDS[kind]}, got {first.get('input')}."
    said = CLICK.search(str(getattr(error, "message", "")))
    if option and said is not None:
        return f"{option} must be {KINDS[said['kind']]}, got {said['value']}."
    return None


def _option(error: Any) -> str:
    """The option or argument that an error is about, as it is written."""
    names = list(getattr(getattr(error, "param", None), "opts", []))
    return next((name for name in names if name.startswith("--")), names[0] if names else "")
