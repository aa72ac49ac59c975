"""Ends of a training before its budget: a stopping rule on validation losses, a non-finite loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.training.config import TrainingConfig
from lmlab.training.progress import Progress
from lmlab.training.train_options import StoppingRule
from lmlab.training.training_logs import read_metrics


class ValidationCourse:
    """The validation losses of a training so far, and whether a rule on them ends it."""

    def __init__(self, rule: StoppingRule | None, losses: Sequence[float] = ()) -> None:
        self._rule = rule
        self._losses = list(losses)
        self.ends = rule is not None and bool(losses) and rule(self._losses)

    @classmethod
    def of_run(
        cls, rule: StoppingRule | None, metrics: Path, split: str | None, step: int
    ) -> ValidationCourse:
        """The course up to a checkpoint; only a validation `split` may decide anything."""
        if rule is None or split != "validation":
            return cls(rule=None)
        lines = read_metrics(metrics) if step else []
        before = [line for line in lines if line["event"] == split and line["step"] <= step]
        return cls(rule, [float(line["loss"]) for line in before])

    def record(self, loss: float) -> None:
        """Add the loss of a validation."""
        self._losses.append(loss)
        self.ends = self._rule is not None and self._rule(self._losses)


def non_finite_error(
    progress: Progress, total: float, norm: float, config: TrainingConfig
) -> UserError:
    """The error for a non-finite loss or gradient, with what to try."""
    quantity = "loss" if not math.isfinite(total) else "gradient"
    suggestions = [f"learning_rate below {config.learning_rate:g}"]
    if not config.grad_clip or config.grad_clip > 1:
        suggestions.append("grad_clip=1")
    if not config.warmup_steps:
        suggestions.append("warmup_steps=100")
    return UserError(
        f"the {quantity} is not finite at step {progress.step + 1} (epoch {progress.epoch + 1}), "
        f"so training stopped; try another --out with --set {', or '.join(suggestions)}."
    )
