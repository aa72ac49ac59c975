"""Scaling of rotary frequencies, by which a model reads longer texts than it was trained on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from lmlab.core.errors import UserError

UNSCALED = "none"
"""The setting for frequencies as they are."""


class RotaryScaling(ABC):
    """How the frequencies (D / 2,) of a rotary position embedding are changed."""

    @abstractmethod
    def scale(self, frequencies: Tensor) -> Tensor:
        """The scaled frequencies, (D / 2,)."""

    @property
    @abstractmethod
    def setting(self) -> str:
        """The setting that `parse_rotary_scaling` reads."""


@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Position interpolation (Chen et al. 2023): all frequencies divided by a factor."""

    factor: float

    def scale(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor

    @property
    def setting(self) -> str:
        return f"linear:{self.factor:.12g}"


@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Scaling by wavelength (Llama 3.1, Grattafiori et al. 2024).

    With r = L f / 2π rotations of a frequency f over the original length L:

        f' = f / factor if r < low,  f if r > high,  else a f + (1 - a) f / factor,
        a = (r - low) / (high - low)
    """

    factor: float
    low: float
    high: float
    original_length: int

    def scale(self, frequencies: Tensor) -> Tensor:
        rotations = self.original_length * frequencies / (2 * math.pi)
        unscaled = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        return unscaled * frequencies + (1 - unscaled) * frequencies / self.factor

    @property
    def setting(self) -> str:
        numbers = (self.factor, self.low, self.high)
        return ":".join(
            ["llama3", *(f"{number:.12g}" for number in numbers), str(self.original_length)]
        )


def parse_rotary_scaling(text: str) -> RotaryScaling | None:
    """The scaling of a setting: none, linear:FACTOR, or llama3:FACTOR:LOW:HIGH:LENGTH."""
    if text == UNSCALED:
        return None
    name, *numbers = text.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if not all(0 < value < math.inf for value in values):
        values = []
    if name == "linear" and len(values) == 1:
        return LinearScaling(values[0])
    if name == "llama3" and len(values) == 4 and values[1] < values[2] and values[3] >= 1:
        return Llama3Scaling(*values[:3], int(values[3]))
    raise UserError(
        "rotary_scaling must be none, linear:FACTOR such as linear:2, or "
        f"llama3:FACTOR:LOW:HIGH:LENGTH such as llama3:8:1:4:8192, with LOW below HIGH, got {text}."
    )
