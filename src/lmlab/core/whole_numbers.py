"""Whole numbers written by somebody else."""

from __future__ import annotations

MOST_DIGITS = 18
"""So that the number fits in 64 bits."""


def whole_number(text: str | bytes) -> int | None:
    """The number that ASCII digits spell; None for anything else, and for more than 18 digits.

    `str.isdigit` is true of "²", which `int` refuses, as it does more than 4,300 digits.
    """
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DIGITS:
        return None
    return int(text)
