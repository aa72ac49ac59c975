"""Complete training runs only: a benchmark stops if its training was interrupted."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Trained(Protocol):
    """Result of a training run."""

    reason: str


Result = TypeVar("Result", bound=Trained)


def finished(result: Result) -> Result:
    """The same result; exits if the training was interrupted."""
    if result.reason == "interrupted":
        raise SystemExit("training was interrupted; the same command resumes or restarts it.")
    return result
