"""Progress of a sweep: a bar over its trainings with the best trial so far, or a line for each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from lmlab.core.errors import escape_control_characters
from lmlab.core.progress_bars import progress_bar
from lmlab.experiments.search_space import describe_point
from lmlab.experiments.sweep_results import Trial
from lmlab.experiments.training_tasks import TrainingOutcome, TrainingTask
from lmlab.training.training_logs import format_exact_duration


class SweepBar:
    """A context; on a terminal a bar, elsewhere lines on standard error."""

    def __init__(self, *, quiet: bool, lower_is_better: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._sign = 1.0 if lower_is_better else -1.0
        self._best: Trial | None = None
        self._done, self._total = 0, ""
        self._bar = progress_bar(
            TextColumn("trainings"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, *, trainings: float, done: int, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self._compare(trial)
        self._done = done
        self._total = "" if math.isinf(trainings) else f"/{trainings:.0f}"
        total = None if math.isinf(trainings) else trainings
        self._bar.update(self._task, total=total, completed=done)
        if done:
            self._say(f"{done} trainings were done before")

    def started(self, task: TrainingTask, trial: Trial) -> None:
        """Nothing is shown until it ends."""

    def ended(self, outcome: TrainingOutcome, trial: Trial) -> None:
        self._done += 1
        self._compare(trial)
        best = (
            "" if self._best is None else f"best {self._best.value:.4f} (trial {self._best.number})"
        )
        self._bar.update(self._task, completed=self._done, description=best)
        self._say(
            f"[{self._done}{self._total}] {outcome.name} ({describe_point(trial.point)}): "
            f"{_result(outcome)}" + (f"; {best}" if best else "")
        )

    def _compare(self, trial: Trial) -> None:
        """Note a trial if it is the best so far."""
        best = None if self._best is None else self._best.value
        if trial.value is not None and (
            best is None or self._sign * trial.value < self._sign * best
        ):
            self._best = trial

    def _say(self, sentence: str) -> None:
        if self._bar.disable:
            self._console.print(
                escape_control_characters(sentence), highlight=False, markup=False, soft_wrap=True
            )


def _result(outcome: TrainingOutcome) -> str:
    if outcome.state == "failed":
        return f"failed: {outcome.failure}"
    after = f"after {format_exact_duration(outcome.seconds)}"
    if outcome.state == "pruned":
        return f"pruned at {outcome.losses[-1]:.4f} {after}"
    return f"{outcome.value:.4f} {after}"
