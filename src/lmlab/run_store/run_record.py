"""`RunRecord`: what a listing knows of a run, read from its folder without loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

RunStatus = Literal["running", "finished", "stopped", "failed"]
"""running: a process writes it; stopped: it can be continued with --resume."""
STATUSES: tuple[str, ...] = get_args(RunStatus)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run: what it is, how far it came, its best held-out figure, settings, size and age."""

    path: Path
    """Its folder."""
    system: str
    size: str = ""
    """Size of the system: tiny, small or base."""
    recipe: str | None = None
    seed: int = 0
    data: str = ""
    """What it was trained on, as named by the user; the rows of a fine-tuned run."""
    task: str | None = None
    status: RunStatus
    reason: str = ""
    """The error of a failed run, or what is unusual of another."""
    progress: float | None = None
    """Share of the budget that is spent, 0 to 1; None if unknown."""
    seconds_left: float | None = None
    """Estimated time to the end, of a run that is running."""
    step: int = 0
    epoch: int = 0
    """Completed epochs."""
    seconds: float = 0.0
    """Time of training, over all resumed sessions."""
    best: float | None = None
    """The best held-out figure: of the selected weights."""
    metric: str = ""
    """What it is: loss, or bleu, accuracy …"""
    split: str = ""
    """The split that it was measured on."""
    unit: str = ""
    """Unit of a loss."""
    kind: str = ""
    """Kind of score of a loss in nats per token: exact, bound, pseudo …"""
    base: str | None = None
    """The run that it is built on."""
    continued_from: str | None = None
    """The run of the same system whose training it continues."""
    imported: str | None = None
    """The checkpoint that it was imported from."""
    changed: float = 0.0
    """When it was last written to, in seconds since 1970 by the clock of its file system."""
    disk: int = 0
    """Bytes of its files."""
    tags: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings of the system and of the training."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def best_kind(self) -> str:
        """What the best figure is: exact, validation; nats per target, test; accuracy, test."""
        if self.best is None:
            return ""
        kind = self.metric if self.metric != "loss" else (self.kind or self.unit)
        return f"{kind}, {self.split}"

    def as_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dict."""
        return asdict(self) | {"path": str(self.path)}

    @classmethod
    def from_index(cls, path: Path, values: Mapping[str, Any]) -> Self:
        """The record of `as_dict`, read from the index; a TypeError where it is of other fields."""
        return cls(**{**values, "path": path, "tags": tuple(values["tags"])})


RECORD_FIELDS = tuple(spec.name for spec in fields(RunRecord) if spec.name not in ("settings",))
