"""Output layers (emissions) by name: softmax, cosine, RBF, Hamming, mixtures, MoS; builder."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from lmlab.core.errors import unknown_name
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.hamming import Hamming, HammingLowest
from lmlab.emissions.mixture import CosineMixtureStates, MixtureEmission, MixtureStates
from lmlab.emissions.mixture_of_softmaxes import MixtureOfSoftmaxes
from lmlab.emissions.softmax import CosineSoftmax, RadialBasis, Softmax

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
"""Names of emissions, for config fields."""
EMISSIONS: tuple[EmissionName, ...] = get_args(EmissionName)
DEFAULT_SOFTMAXES = 10
"""Default components of a mixture of softmaxes; Yang et al. 2018 use 15."""
MAX_PARTS = 8
"""Default vectors per word under hamming, or the next lower divisor of the width."""


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
    """Build the named emission over hidden states of size `width`.

    `tied` is the input embedding under weight tying. `states` is K of the mixtures. `parts` is the
    number of softmaxes in a mixture of softmaxes, or of vectors per word under hamming; None for
    the default. `dropout` applies to the hidden state inside the emission, so the backbone must
    not drop its output.
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
