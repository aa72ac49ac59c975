"""Memories that add to hidden states: a part between two layers that the backbone knows nothing of.

Memories that add context (retrieved documents) change what a backbone reads, and live in
`retrieval`; those that carry hidden states on are a backbone's `State`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from lmlab.core.mentions import Spans
from lmlab.core.view import View


@dataclass(frozen=True, kw_only=True, eq=False)
class Recalled:
    """What a memory made of the hidden states of a view."""

    values: Tensor
    """(B, T, W) the hidden states with what was remembered."""
    found: dict[str, Tensor] = field(default_factory=dict)
    """What it looked up and how sure it was, by name: an objective learns from it, a picture shows
    it. The memory says what its names mean."""
    spans: Spans | None = None
    """The mentions that it looked up; memories after it look up the same. None for the view's."""


class HiddenMemory(nn.Module):
    """Adds what it remembers to the hidden states after some layer (KnowBERT, EaE, FaE)."""

    def forward(self, values: Tensor, view: View) -> Recalled:
        """(B, T, W) hidden states of a view, whose `spans` are the mentions to look up."""
        raise TypeError(f"{type(self).__name__} does not define forward")
