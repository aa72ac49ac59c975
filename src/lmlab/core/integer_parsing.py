"""Parsing of untrusted integers."""

from __future__ import annotations

from lmlab.core.errors import UserError

MOST_DIGITS = 18
"""So that the number fits in 64 bits."""


def parse_integer(text: str | bytes) -> int | None:
    """The number that ASCII digits spell; None for anything else, and for more than 18 digits.

    `str.isdigit` is true of "²", which `int` rejects, as it does more than 4,300 digits.
    """
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        return None
    return int(text)


def check_whole_number(what: str, value: object, *, least: int = 1) -> None:
    """Raise a UserError if a value is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{what} must be a whole number, {least} or more, got {value!r}.")
