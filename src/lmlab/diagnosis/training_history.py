"""Training history of a run, parsed from metrics.jsonl: windows of steps, validation points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmlab.training.training_logs import NOT_FINITE


@dataclass(frozen=True, kw_only=True)
class TrainingWindow:
    """A window of training steps."""

    step: int
    """Its last step."""
    epoch: int
    tokens: float
    """Tokens seen so far."""
    loss: float
    """Mean over the window, in nats per token, dropout included."""
    count: float
    """Predictions in the window."""
    learning_rate: float | None = None
    """Learning rate of its last step …"""
    gradient_norm: float | None = None
    """… norm of its gradient before clipping …"""
    update_ratio: float | None = None
    """… and ‖update‖ / ‖weights‖; None in older runs."""
    embedding_norms: Mapping[str, float] = field(default_factory=dict)
    """Mean norm of the embeddings, by table."""


@dataclass(frozen=True, kw_only=True)
class ValidationPoint:
    """An evaluation on held-out text."""

    step: int
    tokens: float
    """Training tokens seen before it."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """All metrics logged while a run was trained."""

    train: tuple[TrainingWindow, ...] = ()
    held_out: tuple[ValidationPoint, ...] = ()
    split: str | None = None
    """The split evaluated: validation, or test if there is no other."""
    not_finite: bool = False
    """Whether training stopped because its loss or gradient was not finite."""

    @property
    def tokens(self) -> float:
        """Total training tokens seen."""
        return self.train[-1].tokens if self.train else 0.0

    @property
    def steps(self) -> int:
        steps = [window.step for window in self.train] + [point.step for point in self.held_out]
        return max(steps, default=0)

    @property
    def best(self) -> ValidationPoint | None:
        """The evaluation with the lowest loss."""
        return min(self.held_out, key=lambda point: point.loss, default=None)

    def train_loss(self, low: float, high: float) -> float | None:
        """Mean training loss over the windows that end after `low` and up to `high` tokens."""
        inside = [window for window in self.train if low < window.tokens <= high]
        count = sum(window.count for window in inside)
        return sum(w.loss * w.count for w in inside) / count if count else None


def parse_training_history(lines: Sequence[Mapping[str, Any]]) -> TrainingHistory:
    """The history in the lines of a metrics.jsonl; non-finite values are dropped."""
    train: list[TrainingWindow] = []
    held_out: list[ValidationPoint] = []
    split, tokens_seen = None, 0.0
    for line in lines:
        loss, event = _number(line.get("loss")), line.get("event")
        if loss is None:
            continue
        if event == "train":
            count = _number(line.get("count")) or 0.0
            tokens_seen += count
            train.append(_window(line, loss, count, tokens_seen))
        elif event in ("validation", "test"):
            split = str(event)
            held_out.append(ValidationPoint(step=int(line["step"]), tokens=tokens_seen, loss=loss))
    return TrainingHistory(
        train=tuple(train),
        held_out=tuple(held_out),
        split=split,
        not_finite=bool(lines) and lines[-1].get("event") == NOT_FINITE,
    )


def _window(line: Mapping[str, Any], loss: float, count: float, tokens: float) -> TrainingWindow:
    norms = line.get("vector_norms")
    return TrainingWindow(
        step=int(line["step"]),
        epoch=int(line.get("epoch", 0)),
        tokens=tokens,
        loss=loss,
        count=count,
        learning_rate=_number(line.get("learning_rate")),
        gradient_norm=_number(line.get("gradient_norm")),
        update_ratio=_number(line.get("update_ratio")),
        embedding_norms=dict(norms) if isinstance(norms, Mapping) else {},
    )


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else None
