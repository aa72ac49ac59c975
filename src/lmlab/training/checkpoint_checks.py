"""Checkpoint validation on restoring: numbers are checked, mismatches become a UserError."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError


@contextmanager
def restoring(trainer: Path) -> Iterator[None]:
    """A UserError where an intact checkpoint does not match the resumed training."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UserError(
            f"the checkpoint in {trainer} does not fit this training "
            f"({' '.join(str(reason).split())[:200]}); remove that folder to start again."
        ) from error


def checked_numbers(state: Any, expected: Mapping[str, float]) -> dict[str, Any]:
    """The numbers of a checkpoint; a ValueError unless they have these names and types.

    An integer must be non-negative; a float may be infinite, not NaN.
    """
    if not isinstance(state, dict) or set(state) != set(expected):
        raise ValueError(f"expected numbers named {', '.join(expected)}")
    for name, value in state.items():
        whole = isinstance(expected[name], int)
        right = isinstance(value, int) if whole else isinstance(value, (int, float))
        if not right or isinstance(value, bool) or math.isnan(value) or (whole and value < 0):
            kind = "a whole number, 0 or more" if whole else "a number"
            raise ValueError(f"{name} must be {kind}, got {str(value)[:40]!r}")
    return dict(state)
