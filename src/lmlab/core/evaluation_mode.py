"""Evaluation mode for as long as it is needed, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(system: object) -> Iterator[None]:
    """No dropout and no gradients inside; afterwards each module is back in the mode it was in."""
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
    """Where a system's numbers live; the CPU for one that has none."""
    if isinstance(system, nn.Module):
        for tensor in (*system.parameters(), *system.buffers()):
            return tensor.device
    return torch.device("cpu")
