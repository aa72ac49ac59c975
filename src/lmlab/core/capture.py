"""Inner values of a model with what their axes mean, so that anything can be drawn."""

from __future__ import annotations

import math
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

Bounds = tuple[float, float]
REAL: Bounds = (-math.inf, math.inf)
NON_NEGATIVE: Bounds = (0.0, math.inf)
UNIT_INTERVAL: Bounds = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """One inner value: a prior, a posterior, a gate over time, a transition matrix."""

    values: Tensor
    axes: tuple[str, ...]
    """The meaning of each dimension, names of `AXES`; no batch where it belongs to the model."""
    caption: str
    """One sentence on how to read it; which axis is drawn as rows is for the figure to say."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the entries of an axis are called, where the capture itself must tell."""
    bounds: Bounds = REAL
    """The interval that the values lie in by definition; rounding may leave it by a little."""
    sums_to_one: str = ""
    """The axis that the values are a probability distribution over, where they are one."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """What an axis is called in a figure, where that is more than its name: `left child`."""
    unit: str = ""
    """Of the values: nats."""

    def __post_init__(self) -> None:
        assert len(self.axes) == self.values.ndim, "one name for each dimension"
        assert set(self.axes) <= set(AXES), "axes are named in AXES"
        assert self.sums_to_one in ("", *self.axes), "sums_to_one is one of the axes"
        assert set(self.titles) <= set(self.axes), "titles are of the axes"

    @property
    def range(self) -> Bounds:
        """Lowest and highest value that there can be: 0 and 1 for a distribution."""
        return UNIT_INTERVAL if self.sums_to_one else self.bounds
