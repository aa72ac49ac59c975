"""Emissions by name, so that any backbone that yields vectors takes any of them."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from lmlab.core.errors import unknown_name
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.cosine_softmax import CosineSoftmax
from lmlab.emissions.hamming import Hamming, HammingLowest
from lmlab.emissions.mixture import CosineMixtureStates, MixtureEmission, MixtureStates
from lmlab.emissions.mixture_of_softmaxes import MixtureOfSoftmaxes
from lmlab.emissions.rbf import RadialBasis
from lmlab.emissions.softmax import Softmax

EmissionName = Literal[
    "softmax",
    "sphere",
    "mixture",
    "sphere-mixture",
    "mixture-of-softmaxes",
    "hamming",
    "hamming-min",
    "rbf",
]
"""The type of a config field `emission`."""
EMISSIONS: tuple[EmissionName, ...] = get_args(EmissionName)
DEFAULT_SOFTMAXES = 10
"""Of a mixture of softmaxes, where no other number is asked for; Yang et al. 2018 take 15."""
MAX_PARTS = 8
"""Vectors of a word under hamming, where no other number is asked for: or the next lower divisor
of the width."""


def build_emission(
    name: EmissionName,
    width: int,
    vocabulary: Vocabulary,
    *,
    tied: nn.Embedding | None,
    states: int,
    dropout: float,
    parts: int | None = None,
) -> Emission:
    """The emission of that name over hidden vectors of `width` numbers.

    `tied` is the input embedding where it serves as the output vectors too. `states` is K, read by
    the mixtures alone. `parts` is how many softmaxes a mixture of them has, or how many vectors a
    word has under hamming; None for the usual number. `dropout` falls on the hidden state inside
    the emission, so the backbone before it drops nothing at its end.
    """
    match name:
        case "softmax":
            return Softmax(width, vocabulary, tied=tied, dropout=dropout)
        case "sphere":
            return CosineSoftmax(width, vocabulary, tied=tied, dropout=dropout)
        case "mixture":
            return MixtureEmission(
                width, MixtureStates(states, width, vocabulary, tied=tied), dropout=dropout
            )
        case "sphere-mixture":
            on_sphere = CosineMixtureStates(states, width, vocabulary, tied=tied)
            return MixtureEmission(width, on_sphere, dropout=dropout)
        case "mixture-of-softmaxes":
            count = parts or DEFAULT_SOFTMAXES
            return MixtureOfSoftmaxes(width, count, vocabulary, tied=tied, dropout=dropout)
        case "hamming" | "hamming-min":
            kind = Hamming if name == "hamming" else HammingLowest
            return kind(width, parts or _parts_of(width), vocabulary, tied=tied, dropout=dropout)
        case "rbf":
            return RadialBasis(width, vocabulary, tied=tied, dropout=dropout)
    raise unknown_name("emission", name, EMISSIONS)


def _parts_of(width: int) -> int:
    return max(count for count in range(1, MAX_PARTS + 1) if width % count == 0)
