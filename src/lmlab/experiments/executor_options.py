"""The options that say where tasks run; importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lmlab.core.options import Option
from lmlab.core.shared_options import Jobs


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where the tasks of an experiment run, and how many at once."""

    jobs: Jobs = None
    on: Annotated[
        str | None,
        Option(
            "Run on Ray: ray (the cluster of RAY_ADDRESS, or a local one) or ray://HOST:PORT.",
            metavar="ray|ray://HOST:PORT",
            show_default="this machine",
        ),
    ] = None
    gpus: Annotated[float, Option("GPUs of each task on Ray; fractions share one.")] = 0.0
