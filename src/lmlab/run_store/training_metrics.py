"""What a listing reads of metrics.jsonl: the best held-out figure and the last training line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.untrusted_input import parse_json

NATS_PER_TOKEN = "nats per token"
TRAINING_LINE = b'"event": "train"'
BETTER_HIGH = ("bleu",)
"""Validation metrics by which weights may be selected; higher is better."""


@dataclass(frozen=True, kw_only=True)
class BestFigure:
    """The held-out figure of the selected weights."""

    value: float
    metric: str
    split: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class MetricsSummary:
    """The summary of a metrics.jsonl."""

    best: BestFigure | None = None
    last: Mapping[str, Any] | None = None
    """The last training line."""
    not_finite: bool = False
    """Whether the last line says that the loss became non-finite."""


def read_metrics_summary(path: Path) -> MetricsSummary:
    """Read the lines that matter; training lines before the last are passed over unparsed."""
    try:
        content = path.read_bytes()
    except OSError:
        return MetricsSummary()
    lines = content.splitlines()
    training = [line for line in lines if TRAINING_LINE in line]
    others = [line for line in lines if TRAINING_LINE not in line]
    last = next((line for raw in reversed(training) if (line := _parse(raw))), None)
    parsed = [line for raw in others if (line := _parse(raw)) is not None]
    final = next((line for raw in reversed(lines) if (line := _parse(raw))), {})
    return MetricsSummary(
        best=best_figure(parsed), last=last, not_finite=final.get("event") == "not finite"
    )


def best_figure(lines: list[dict[str, Any]]) -> BestFigure | None:
    """The best of the held-out lines: by the metric that weights are selected by, else the loss.

    On a test split nothing is selected, so that the last loss is the run's.
    """
    validation = [line for line in lines if line.get("event") in ("validation", "average")]
    for metric in BETTER_HIGH:
        values = [value for line in validation if (value := _number(line, metric)) is not None]
        if values:
            return BestFigure(value=max(values), metric=metric, split="validation", unit="")
    split = "validation" if validation else "test"
    losses = validation or [line for line in lines if line.get("event") == "test"][-1:]
    numbers = [(value, line) for line in losses if (value := _number(line, "loss")) is not None]
    if not numbers:
        return None
    value, line = min(numbers, key=lambda pair: pair[0])
    unit = str(line.get("unit", NATS_PER_TOKEN))
    return BestFigure(value=value, metric="loss", split=split, unit=unit)


def _number(line: Mapping[str, Any], name: str) -> float | None:
    value = line.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _parse(raw: bytes) -> dict[str, Any] | None:
    """A line as an object; None if it is damaged, as the last one of a killed process may be."""
    try:
        line = parse_json(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
