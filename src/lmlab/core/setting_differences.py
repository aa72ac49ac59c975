"""The settings in which runs differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def differing_names(settings: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The settings that have several values among the runs that have them, in their order."""
    first: dict[str, Any] = {}
    differing: set[str] = set()
    # Runs of one training plan share the object.
    for values in {id(values): values for values in settings}.values():
        for name, value in values.items():
            if first.setdefault(name, value) != value:
                differing.add(name)
    return tuple(name for name in first if name in differing)
