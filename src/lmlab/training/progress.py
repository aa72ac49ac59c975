"""Training progress counters, budget (epochs, steps, minutes), early stopping, stop signals."""

from __future__ import annotations

import math
import signal
import threading
import time
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Self

from lmlab.training.checkpoints import checked_numbers
from lmlab.training.config import ClockName, TrainingConfig

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass
class Progress:
    """Training progress: all scalars that change from step to step; saved in checkpoints."""

    step: int = 0
    epoch: int = 0
    """Completed epochs."""
    position: int = 0
    """Batches of this epoch already used."""
    seconds: float = 0.0
    """Time by the config's clock, over all resumed sessions."""
    best: float = math.inf
    """The validation loss of the best weights so far."""
    best_score: float = math.inf
    """Their selection score, lower is better: that loss, or minus a validation metric."""
    best_step: int = 0
    stale_validations: int = 0
    """Validations since the best one."""
    averaged_at_step: int = 0
    """The step at which weights were averaged; a training killed after it does not repeat that."""
    window_total: float = 0.0
    """Loss since the last training line of the metrics …"""
    window_count: float = 0.0
    """… and predictions …"""
    window_seconds: float = 0.0
    """… and seconds of training alone."""

    @property
    def current_epoch(self) -> int:
        """The epoch of the last step, counted from 1."""
        return self.epoch + 1 if self.position or not self.step else self.epoch

    def advance(
        self, total: float, count: float, seconds: float, batches: int, per_epoch: int
    ) -> None:
        """Record one step."""
        self.step += 1
        self.position += batches
        self.window_total += total
        self.window_count += count
        self.window_seconds += seconds
        if self.position >= per_epoch:
            self.epoch, self.position = self.epoch + 1, 0

    def record_validation(self, loss: float, rank: float | None = None) -> bool:
        """Record a validation; true if its rank is the best so far, or equal with a lower loss. The
        rank defaults to the loss."""
        improved = self.record_best(loss, rank)
        self.stale_validations = 0 if improved else self.stale_validations + 1
        return improved

    def record_best(self, loss: float, rank: float | None = None) -> bool:
        """The same without effect on early stopping, for averaged weights."""
        rank = loss if rank is None else rank
        if (rank, loss) < (self.best_score, self.best):
            self.best, self.best_score, self.best_step = loss, rank, self.step
            return True
        return False

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Self:
        """The progress stored in a checkpoint; a ValueError where it is invalid."""
        return cls(**checked_numbers(state, asdict(cls())))


@dataclass(frozen=True)
class Budget:
    """Training budget in epochs, steps or minutes."""

    config: TrainingConfig
    per_epoch: int
    """Batches per epoch."""

    def epochs_done(self, progress: Progress) -> float:
        """Epochs done, with the share of the current one."""
        return progress.epoch + progress.position / max(self.per_epoch, 1)

    def fraction_spent(self, progress: Progress) -> float:
        """The fraction used, of several budgets the largest; 1 or more when it is over."""
        config, fractions = self.config, []
        if config.epochs is not None:
            fractions.append(self.epochs_done(progress) / config.epochs)
        if config.steps is not None:
            fractions.append(progress.step / config.steps)
        if config.minutes is not None:
            fractions.append(progress.seconds / (60 * config.minutes))
        return max(fractions)

    def is_over(self, progress: Progress) -> bool:
        """Whether training is finished, by the budget or by early stopping."""
        return self.fraction_spent(progress) >= 1 or self.early_stopping_due(progress)

    def early_stopping_due(self, progress: Progress) -> bool:
        return 0 < self.config.patience <= progress.stale_validations

    def evaluation_due(self, progress: Progress) -> bool:
        if self.config.evaluate_every:
            return progress.step % self.config.evaluate_every == 0
        return progress.position == 0

    def checkpoint_due(self, progress: Progress, saved_at: float) -> bool:
        """Whether a checkpoint is due, the last one being at `saved_at` seconds."""
        checkpoint_steps = self.config.checkpoint_steps
        by_clock = progress.seconds - saved_at >= 60 * self.config.checkpoint_minutes
        return by_clock or (checkpoint_steps > 0 and progress.step % checkpoint_steps == 0)


class TrainingClock:
    """Seconds of a training, over all resumed sessions, by the wall clock or in CPU time."""

    def __init__(self, elapsed: float = 0.0, *, clock: ClockName = "wall") -> None:
        self._read = CLOCKS[clock]
        self._start = self._read() - elapsed

    def seconds(self) -> float:
        return self._read() - self._start


class StopSignals:
    """Graceful stop on Ctrl-C, SIGTERM and SIGHUP: finish the step, then write a checkpoint.

    An exception in the middle of a step would leave weights half updated. A second Ctrl-C does
    raise. Under `nohup` SIGHUP is ignored, and stays so.
    """

    def __init__(self) -> None:
        self.stop_requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _stop_signals():
                self._before[number] = signal.signal(number, self._request_stop)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stop_requested = True


def _stop_signals() -> list[signal.Signals]:
    """The signals that ask a training to stop."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]
