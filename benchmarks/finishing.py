"""Trainings of benchmarks: nothing is measured of one that was stopped on its way."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Trained(Protocol):
    """How a training went."""

    reason: str


Result = TypeVar("Result", bound=Trained)


def finished(result: Result) -> Result:
    """The same result; the program ends where its training was stopped before its end."""
    if result.reason == "interrupted":
        raise SystemExit("stopped before it was trained; the same command goes on, or begins anew.")
    return result
