"""Emissions by name, so that any backbone that yields vectors takes any of them."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from lmlab.core.errors import unknown_name
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.mixture import Mixture, SphereStates, States
from lmlab.emissions.softmax import Softmax
from lmlab.emissions.sphere import Sphere

EmissionName = Literal["softmax", "sphere", "mixture", "sphere-mixture"]
"""The type of a config field `emission`."""
EMISSIONS: tuple[EmissionName, ...] = get_args(EmissionName)


def build_emission(
    name: EmissionName,
    width: int,
    vocabulary: Vocabulary,
    *,
    tied: nn.Embedding | None,
    states: int,
    dropout: float,
) -> Emission:
    """The emission of that name over hidden vectors of `width` numbers.

    `tied` is the input embedding where it serves as the output vectors too; `states` is K, read by
    the mixtures alone. `dropout` falls on the hidden state inside the emission, so the backbone
    before it drops nothing at its end.
    """
    match name:
        case "softmax":
            return Softmax(width, vocabulary, tied=tied, dropout=dropout)
        case "sphere":
            return Sphere(width, vocabulary, tied=tied, dropout=dropout)
        case "mixture":
            return Mixture(width, States(states, width, vocabulary, tied=tied), dropout=dropout)
        case "sphere-mixture":
            on_sphere = SphereStates(states, width, vocabulary, tied=tied)
            return Mixture(width, on_sphere, dropout=dropout)
    raise unknown_name("emission", name, EMISSIONS)
