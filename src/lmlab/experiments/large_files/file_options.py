"""Options of commands on large files; importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lmlab.core.compute_options import ComputeOptions, current_compute
from lmlab.core.options import Option
from lmlab.core.shared_options import Errors, no_progress
from lmlab.experiments.executor_options import ExecutorOptions

if TYPE_CHECKING:
    from lmlab.experiments.executors import Executor

CHUNK_BYTES = 1 << 18
PANEL = "Large files (--out)"


@dataclass(frozen=True, kw_only=True)
class FileOptions(ExecutorOptions, ComputeOptions):
    """How a large file is divided, and where its chunks are worked on.

    Each process has one thread unless `threads` says otherwise: the last digits depend on it.
    """

    jobs: Annotated[
        int | None,
        Option(
            "Number of processes, which work on chunks.",
            show_default="1; on Ray, all that fit",
            panel=PANEL,
        ),
    ] = None
    chunk_bytes: Annotated[
        int,
        Option(
            "Size of a chunk; it ends at a line end. What a kill loses is a chunk per process.",
            panel=PANEL,
        ),
    ] = CHUNK_BYTES
    errors: Errors = "strict"
    language: str | None = None
    """Of the texts, for a system with language embeddings (xlm)."""
    executor: Executor | None = None
    """Where the chunks are worked on, if not as `jobs` and `on` say."""
    report: Callable[[str, int, int], None] = no_progress
    """Called with what is done, the chunks done and their number."""

    def compute(self) -> ComputeOptions:
        """The device, precision and threads of each process: these, else those of the command."""
        current = current_compute()
        return ComputeOptions(
            device=self.device or current.device,
            precision=self.precision or current.precision,
            threads=self.threads or current.threads or 1,
        )
