"""Optimisers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmlab.training.config import TrainingConfig


def build_optimizer(system: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Build the configured optimiser over a system's trainable parameters.

    Weight decay applies to matrices only, not to biases, gains and scales.
    """
    trainable = [parameter for parameter in system.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    words: dict[str, Any] = {"lr": config.learning_rate}
    if config.optimizer not in ("sgd", "adafactor") and config.eps is not None:
        words["eps"] = config.eps
    if config.optimizer in ("sgd", "rmsprop"):
        words["momentum"] = config.momentum
    elif config.optimizer != "adafactor":
        # Fused kernel for all parameters: much faster than torch's default on a CPU.
        words["fused"] = True
    return _CLASSES[config.optimizer](groups, **words)


_CLASSES: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adafactor": torch.optim.Adafactor,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
