"""How the learning rate changes with the step, the spent share of the budget, and the gains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmlab.training.checkpoint_checks import checked_numbers
from lmlab.training.config import TrainingConfig

COSINE_FLOOR = 0.01
"""The share of the learning rate at which the cosine ends."""
PLATEAU_FLOOR = 1e-4
"""The share at which the line ends."""


@dataclass
class LearningRateSchedule:
    """The learning rate before each step, and the little that it remembers between them.

    With peak rate r, warm-up of w steps, step n = 0, 1, …, spent share u of the budget:

    - constant: r
    - linear: r max(1 - u, 0.0001) (Mikolov et al. 2013)
    - cosine: r (c + (1 - c)(1 + cos πu)/2), c = 0.01 (Loshchilov and Hutter 2017)
    - inverse-square-root: r √(w / max(n + 1, w)) (Vaswani et al. 2017)
    - plateau: r f^k after k plateaus of the validation loss

    all of them times (n + 1)/w during the warm-up.
    """

    config: TrainingConfig
    scale: float = 1.0
    """f^k so far, of the plateau schedule."""
    best: float = math.inf
    stale_validations: int = 0
    """Validations since the best one or the last cut."""

    def learning_rate_at(self, step: int, spent: float) -> float:
        """The learning rate of a step, `spent` being the share of the budget used before it."""
        warmup = self.config.warmup_steps
        rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return self.config.learning_rate * rising * self._falling(step, min(max(spent, 0.0), 1.0))

    def _falling(self, step: int, spent: float) -> float:
        if self.config.schedule == "linear":
            return max(1 - spent, PLATEAU_FLOOR)
        if self.config.schedule == "cosine":
            return COSINE_FLOOR + (1 - COSINE_FLOOR) * (1 + math.cos(math.pi * spent)) / 2
        if self.config.schedule == "inverse-square-root":
            warmup = max(self.config.warmup_steps, 1)
            return math.sqrt(warmup / max(step + 1, warmup))
        return self.scale

    def record_validation(self, loss: float) -> None:
        """Take note of a validation loss; the plateau schedule cuts the rate when gains end."""
        if loss < self.best:
            self.best, self.stale_validations = loss, 0
            return
        self.stale_validations += 1
        if (
            self.config.schedule == "plateau"
            and self.stale_validations >= self.config.plateau_patience
        ):
            self.scale, self.stale_validations = self.scale * self.config.plateau_factor, 0

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "best": self.best, "stale_validations": self.stale_validations}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from what a checkpoint kept; a ValueError where it is no state of a schedule."""
        for name, value in checked_numbers(state, self.state()).items():
            setattr(self, name, value)
