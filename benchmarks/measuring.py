"""Rates, and ratios of two sides measured in alternation."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any, Self


def rate(
    step: Callable[[], int], seconds: float = 4.0, clock: Callable[[], float] = time.perf_counter
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
    """Measure both sides in alternation, so that load affects both alike."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return ratio([a for a, _ in pairs], [b for _, b in pairs])


class Apart:
    """A side in a separate process, with lmlab's memory settings or the default ones.

    `make(*made_of)` is called there and gives the measurement, a function of whatever this one is
    called with. Only the side whose turn it is computes.
    """

    def __init__(
        self, make: Callable[..., Callable[..., Any]], *made_of: Any, threads: int
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, make, made_of, threads), daemon=True
        )
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def __call__(self, *asked: Any) -> Any:
        self.pipe.send(asked)
        return self.pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.join()


def _serve(pipe: Any, make: Callable[..., Any], made_of: tuple[Any, ...], threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    measure = make(*made_of)
    pipe.send("ready")
    while True:
        pipe.send(measure(*pipe.recv()))
