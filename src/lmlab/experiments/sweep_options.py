"""The options of `lmlab sweep` and `lmlab.sweep`; importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.figure_style import FigureFileStyle
from lmlab.core.options import Option
from lmlab.core.shared_options import Jobs
from lmlab.core.tracking_options import Track

if TYPE_CHECKING:
    from lmlab.experiments.executors import Executor


@dataclass(frozen=True, kw_only=True)
class SweepOptions(FigureFileStyle):
    """Where a sweep's results go, and how it is run; what it is says the spec."""

    out: Annotated[str | Path, Option("Output folder.", metavar="DIR")]
    jobs: Jobs = 1
    dry_run: Annotated[bool, Option("List the trials, and train nothing.")] = False
    retry_failed: Annotated[bool, Option("Train the failed trials of an earlier call again.")] = (
        False
    )
    track: Track = ()
    quiet: bool = False
    executor: Executor | None = None
    """Where the trainings run, if not in `jobs` processes of this machine."""
