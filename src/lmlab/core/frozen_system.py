"""Frozen copy of a trained system, used inside another."""

from __future__ import annotations

from copy import deepcopy
from typing import Self

from torch import nn

from lmlab.core.system import System


class FrozenSystem(nn.Module):
    """A copy of a system without gradients, always in evaluation mode.

    It is saved and moved with its owner, whose training does not change it.
    """

    def __init__(self, system: System) -> None:
        super().__init__()
        self.system = deepcopy(system).requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)
