"""Inner values of a model with what their axes mean, so that anything can be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

AXES = {
    "batch": "sequences of the batch",
    "time": "places at which a token is predicted, in reading order",
    "source": "input places that a prediction may look at",
    "distance": "how many places back, 1 is the token before",
    "head": "heads of an attention layer",
    "slot": "slots, parents or positions of a window",
    "state": "latent states",
    "next state": "latent states, one step later",
    "token": "entries of the vocabulary",
    "unit": "numbers of a hidden or latent vector",
    "move": "places from one slot's token to the next slot's, 0 in the middle, back on the left",
    "entity": "entities that a memory knows, by the names that its capture gives",
    "fact": "facts that a memory knows, by the names that its capture gives",
    "choice": "ways of a discrete choice that are named nowhere else",
}
"""One vocabulary of axes; a picture is chosen by them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """One inner value: a prior, a posterior, a gate over time, a transition matrix."""

    values: Tensor
    axes: tuple[str, ...]
    """The meaning of each dimension, names of `AXES`; no batch where it belongs to the model."""
    reading: str
    """One sentence on how to read it."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the entries of an axis are called, where the capture itself must tell."""

    def __post_init__(self) -> None:
        assert len(self.axes) == self.values.ndim, "one name for each dimension"
        assert set(self.axes) <= set(AXES), "axes are named in AXES"
