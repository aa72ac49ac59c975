"""Rates and ratios of two sides that take turns in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def rate(
    step: Callable[[], int],
    seconds: float = 4.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Tokens per second over a few seconds of steps, by a clock.

    `time.process_time` counts what the process has computed: for one thread the same on an idle
    machine, and the fairer clock on a busy one.
    """
    began, tokens = clock(), 0
    while clock() - began < seconds:
        tokens += step()
    return tokens / (clock() - began)


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Ratio of medians, with the spread of the rounds' own ratios."""
    each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "ours": statistics.median(ours),
        "peer": statistics.median(theirs),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "lowest": each[0],
        "highest": each[-1],
        "rounds": len(each),
    }


def taking_turns(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> dict[str, float]:
    """Both sides measured in alternation, so that a busy moment of the machine meets both."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return ratio([a for a, _ in pairs], [b for _, b in pairs])
