"""Experiment trackers (TensorBoard, Weights & Biases, MLflow, Trackio) through accelerate.

Their classes, and the interface `GeneralTracker` for one of your own, are accelerate's. None of
them decides anything: metrics.jsonl is the record of a training.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lmlab.core.errors import LmlabWarning
from lmlab.core.tracking_options import Tracker

PROJECT = "lmlab"
"""The project (experiment) of the runs, in trackers that have projects."""
TENSORBOARD_FOLDER = "tensorboard"
"""The folder of TensorBoard's files, in a run's own."""
NO_TELEMETRY = {"MLFLOW_DISABLE_TELEMETRY": "true", "GRADIO_ANALYTICS_ENABLED": "False"}
"""Usage statistics of the trackers' makers, which are off unless the user has turned them on."""


class Trackers:
    """The trackers of one training.

    One that fails, at any time, is left out from there on with one warning: no training ends
    because of it. They are started by the first `start`, on the main process alone.
    """

    def __init__(
        self, trackers: Sequence[str | Tracker], folder: Path, settings: Mapping[str, Any]
    ) -> None:
        """`folder` is the run's; `settings` are recorded with it."""
        self._given = trackers
        self._folder = folder
        self._settings = {name: simple_value(value) for name, value in settings.items()}
        self._running: dict[str, Tracker] = {}

    def start(self, *, after: int) -> None:
        """Start them; values that a killed training logged after that step are void."""
        for tracker in self._given:
            name = tracker if isinstance(tracker, str) else str(tracker.name)
            self._attempt(name, partial(self._start, tracker, name, after))

    def _start(self, given: str | Tracker, name: str, after: int) -> None:
        tracker = self._make(given, after) if isinstance(given, str) else given
        if hasattr(tracker, "start"):  # a part of the interface from accelerate 1.8 on
            tracker.start()
        self._running[name] = tracker
        tracker.store_init_configuration(dict(self._settings))

    def _make(self, name: str, after: int) -> Tracker:
        """A tracker of accelerate, with the arguments that its service needs."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        for variable, value in NO_TELEMETRY.items():
            os.environ.setdefault(variable, value)
        run = self._folder.resolve().name
        arguments: Mapping[str, Mapping[str, Any]] = {
            "tensorboard": {
                "run_name": TENSORBOARD_FOLDER,
                "logging_dir": str(self._folder),
                "purge_step": after + 1,
            },
            "wandb": {"run_name": PROJECT, "name": run, "dir": str(self._folder)},
            "mlflow": {"experiment_name": PROJECT, "run_name": run},
            "trackio": {"run_name": PROJECT, "name": run},
        }
        tracker: Tracker = LOGGER_TYPE_TO_CLASS[name](**arguments[name])
        return tracker

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log figures by name at a step."""
        for name, tracker in [*self._running.items()]:
            self._attempt(name, partial(tracker.log, dict(values), step=step))

    def finish(self) -> None:
        """Close them."""
        for name, tracker in [*self._running.items()]:
            self._attempt(name, tracker.finish)
        self._running.clear()

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._running.pop(name, None)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            sentence = (
                f"the tracker {name} failed and gets nothing more ({reason}); the training goes "
                f"on, and metrics.jsonl has all its figures."
            )
            warnings.warn(sentence, LmlabWarning, stacklevel=2)


def simple_value(value: Any) -> Any:
    """A setting as trackers take it: a number, a truth value or a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)
