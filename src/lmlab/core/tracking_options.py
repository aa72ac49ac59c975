"""The option `--track`: which experiment trackers get the metrics; imports no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.options import Option


@runtime_checkable
class Tracker(Protocol):
    """What is used of accelerate's `GeneralTracker`, the interface for trackers of one's own."""

    @property
    def name(self) -> str: ...

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None: ...

    def finish(self) -> None: ...


TRACKERS: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
}
"""The trackers that are known by name, each with its package on PyPI."""


def parse_trackers(text: str) -> list[str]:
    """Parse names separated by commas."""
    return [name.strip().lower() for name in text.split(",") if name.strip()]


Track = Annotated[
    Sequence[str | Tracker],
    Option(
        "Also log the metrics to tensorboard, wandb, mlflow or trackio; several separated by "
        "commas.",
        metavar="A,B",
        parse=parse_trackers,
        show_default="metrics.jsonl alone",
    ),
]


def check_trackers(track: Sequence[str | Tracker]) -> tuple[str | Tracker, ...]:
    """The trackers, each once; a UserError for one that is unknown or not installed."""
    given = parse_trackers(track) if isinstance(track, str) else track
    for tracker in given:
        if not isinstance(tracker, str):
            continue
        if tracker not in TRACKERS:
            raise unknown_name("tracker", tracker, TRACKERS)
        package = TRACKERS[tracker]
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:  # without an origin it is just a folder wandb/
            raise UserError(f"{tracker} is not installed; pip install {package}.")
    return tuple(dict.fromkeys(given))


def check_tracker_names(track: Sequence[str | Tracker]) -> tuple[str, ...]:
    """The same, for trainings that are plain data (a sweep's), which may run elsewhere."""
    checked = check_trackers(track)
    names = tuple(tracker for tracker in checked if isinstance(tracker, str))
    if len(names) < len(checked):
        raise UserError(
            f"a sweep takes trackers by name, since its trainings may run in other processes; "
            f"choose from {', '.join(TRACKERS)}."
        )
    return names
