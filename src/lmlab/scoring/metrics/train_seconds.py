"""Training time."""

from __future__ import annotations

import json
from pathlib import Path

from lmlab.scoring.metric import Column, Metric
from lmlab.training.training_logs import format_exact_duration


def training_seconds(run: Path) -> float | None:
    """Training time in seconds from the run's last metrics line, if there is one."""
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(lines[-1])["seconds"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


METRIC = Metric(
    name="train_seconds",
    explanation="training is the wall-clock time of training, the mean over seeds",
    compute=lambda runs: runs.mean(lambda run: training_seconds(run.model.path)),
    table=Column(title="training", order=90, format=format_exact_duration),
    report=Column(
        title="training", order=90, format=format_exact_duration, shown=lambda rows: True
    ),
    in_legend=False,
)
