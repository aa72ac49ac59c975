"""Optimisers (AdamW, Adam, Adafactor, SGD, RMSprop) and learning rate schedules with warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lmlab.core.errors import UserError
from lmlab.training.checkpoints import checked_numbers
from lmlab.training.config import TrainingConfig


def build_optimizer(system: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the configured optimiser over a system's trainable parameters.

    Weight decay applies to matrices only, not to biases, gains and scales.
    """
    trainable = [parameter for parameter in system.parameters() if parameter.requires_grad]
    if not trainable:
        raise UserError(
            "this model has no parameter to train by gradient (it is counted, or made of frozen "
            "models); choose another one."
        )
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    arguments: dict[str, Any] = {"lr": config.learning_rate}
    if config.optimizer not in ("sgd", "adafactor") and config.eps is not None:
        arguments["eps"] = config.eps
    if config.optimizer in ("sgd", "rmsprop"):
        arguments["momentum"] = config.momentum
    elif config.optimizer != "adafactor":
        # Fused kernel for all parameters: much faster than torch's default on a CPU.
        arguments["fused"] = True
    optimizer: torch.optim.Optimizer = _CLASSES[config.optimizer](groups, **arguments)
    return optimizer


_CLASSES: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adafactor": torch.optim.Adafactor,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}


COSINE_FLOOR = 0.01
"""Final fraction of the learning rate of cosine."""
LINEAR_FLOOR = 1e-4
"""Final fraction of the learning rate of linear."""


@dataclass
class LearningRateSchedule:
    """Learning rate schedule with warm-up, and its small state.

    With peak rate r, warm-up of w steps, step n = 0, 1, …, spent fraction u of the budget:

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
    """Validations since the best one or the last reduction."""

    def learning_rate_at(self, step: int, spent: float) -> float:
        """The learning rate of a step, with `spent` the fraction of the budget used before it."""
        decay = self._decay_factor(step, min(max(spent, 0.0), 1.0))
        return self.config.learning_rate * self.warmup_factor(step) * decay

    def warmup_factor(self, step: int) -> float:
        """Linear warm-up: (step + 1) / warmup_steps, then 1."""
        warmup = self.config.warmup_steps
        return min(1.0, (step + 1) / warmup) if warmup else 1.0

    def _decay_factor(self, step: int, spent: float) -> float:
        if self.config.schedule == "linear":
            return max(1 - spent, LINEAR_FLOOR)
        if self.config.schedule == "cosine":
            return COSINE_FLOOR + (1 - COSINE_FLOOR) * (1 + math.cos(math.pi * spent)) / 2
        if self.config.schedule == "inverse-square-root":
            warmup = max(self.config.warmup_steps, 1)
            return math.sqrt(warmup / max(step + 1, warmup))
        return self.scale

    def record_validation(self, loss: float) -> None:
        """Record a validation loss; on a plateau, the plateau schedule reduces the rate."""
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
        """State for a checkpoint."""
        return {"scale": self.scale, "best": self.best, "stale_validations": self.stale_validations}

    def restore(self, state: dict[str, float]) -> None:
        """Restore the state of a checkpoint; a ValueError where it is invalid."""
        for name, value in checked_numbers(state, self.state()).items():
            setattr(self, name, value)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
