"""Throughput, and throughput ratios of two sides measured in alternation."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any, Self


def rate(
    step: Callable[[], int], seconds: float = 4.0, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Throughput in tokens per second, over at least `seconds` of steps.

    With `time.process_time` as the clock it is per CPU second: the same for one thread on an idle
    machine, and fairer on a busy one.
    """
    start, tokens = clock(), 0
    while clock() - start < seconds:
        tokens += step()
    return tokens / (clock() - start)


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Ratio of medians, with the range of the ratios by round."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "ours": statistics.median(ours),
        "peer": statistics.median(theirs),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "rounds": len(ratios),
    }


def measure_alternating(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> dict[str, float]:
    """Measure both sides in alternation, so that load affects both alike."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return ratio([a for a, _ in pairs], [b for _, b in pairs])


class SubprocessMeasurement:
    """A measurement in a separate process, with lmlab's allocator settings or the default ones.

    `make(*make_arguments)` is called there and returns the measuring function; calls are forwarded
    to it. The process is idle between calls.
    """

    def __init__(
        self, make: Callable[..., Callable[..., Any]], *make_arguments: Any, threads: int
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, make, make_arguments, threads), daemon=True
        )
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def __call__(self, *arguments: Any) -> Any:
        self.pipe.send(arguments)
        return self.pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.join()


def _serve(
    pipe: Any, make: Callable[..., Any], make_arguments: tuple[Any, ...], threads: int
) -> None:
    import torch

    torch.set_num_threads(threads)
    measure = make(*make_arguments)
    pipe.send("ready")
    while True:
        pipe.send(measure(*pipe.recv()))
