"""Captured internals of a model (attention, gates, posteriors) with named axes, for figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

AXES = {
    "batch": "sequences of the batch",
    "time": "positions at which a token is predicted, in reading order",
    "source": "input positions that a prediction may attend to",
    "distance": "distance back in positions; 1 is the previous token",
    "head": "heads of an attention layer",
    "slot": "slots, parents or positions of a window",
    "state": "latent states",
    "next state": "latent states, one step later",
    "token": "entries of the vocabulary",
    "unit": "units of a hidden or latent vector",
    "move": "offset from one slot's token to the next slot's; backwards is on the left",
    "entity": "entities in a memory, named by its capture",
    "fact": "facts in a memory, named by its capture",
    "choice": "options of a discrete choice without names of their own",
}
"""All axis names; they determine the kind of figure."""

Bounds = tuple[float, float]
REAL: Bounds = (-math.inf, math.inf)
NON_NEGATIVE: Bounds = (0.0, math.inf)
UNIT_INTERVAL: Bounds = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """One internal value: a prior, a posterior, a gate over time, a transition matrix."""

    values: Tensor
    axes: tuple[str, ...]
    """The meaning of each dimension, names of `AXES`; no batch axis if it belongs to the model."""
    caption: str
    """One sentence on its interpretation; the figure says which axis is plotted as rows."""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of an axis's entries, if the capture itself must give them."""
    bounds: Bounds = REAL
    """The interval of the values by definition; rounding may exceed it slightly."""
    sums_to_one: str = ""
    """The axis over which the values are a probability distribution, if any."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Figure titles of axes, if different from their names: `left child`."""
    unit: str = ""
    """Unit of the values: nats."""

    def __post_init__(self) -> None:
        assert len(self.axes) == self.values.ndim, "one name for each dimension"
        assert set(self.axes) <= set(AXES), "axes are named in AXES"
        assert self.sums_to_one in ("", *self.axes), "sums_to_one is one of the axes"
        assert set(self.titles) <= set(self.axes), "titles are of the axes"

    @property
    def range(self) -> Bounds:
        """Lowest and highest possible value: 0 and 1 for a distribution."""
        return UNIT_INTERVAL if self.sums_to_one else self.bounds
