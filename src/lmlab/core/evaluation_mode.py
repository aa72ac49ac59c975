"""Evaluation mode context manager (no dropout, no gradients), and the device of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(system: object) -> Iterator[None]:
    """Evaluation mode inside; on exit each module is back in its previous mode."""
    modules = list(system.modules()) if isinstance(system, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def device_of(system: object) -> torch.device:
    """The device of a system's tensors; the CPU if it has none."""
    if isinstance(system, nn.Module):
        for tensor in (*system.parameters(), *system.buffers()):
            return tensor.device
    return torch.device("cpu")
