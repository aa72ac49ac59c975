"""What memories between layers find (`MemoryOutput.found`), by name, so that objectives learn from
it.

Of a view with M mentions and N entities known:
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from lmlab.core.entity_mentions import MentionSpans
from lmlab.core.view import View

MENTION_TAGS = "tags"
"""(B, T, 3) log p(outside, begins, goes on) of each place: where mentions are."""
MENTION_SPANS = "mentions"
"""(M, 3) the row, the first and the last place of each mention that was looked up."""
ENTITY_LOG_PROBS = "entities"
"""(M, N) log p(entity) of each mention."""
MASKED_MENTIONS = "asked"
"""(M,) bool: the Q mentions that are hidden, for which facts are looked up."""
FACT_LOG_PROBS = "facts"
"""(Q, F + 1) log p(fact) of each hidden mention, the null fact last."""
SUPPORTED_FACTS = "supported"
"""(Q, F + 1) bool: the facts that the text speaks for, as far as its mentions are told."""
ANSWER_LOG_PROBS = "answers"
"""(Q, N) log p(entity) of each hidden mention, facts counted in."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryOutput:
    """What a memory made of the hidden states of a view."""

    values: Tensor
    """(B, T, W) the hidden states with what was remembered."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """What it looked up and how sure it was, by name: an objective learns from it, a picture shows
    it. The memory says what its names mean."""
    spans: MentionSpans | None = None
    """The mentions that it looked up; memories after it look up the same. None for the view's."""


class HiddenMemory(nn.Module):
    """Adds what it remembers to the hidden states after some layer (KnowBERT, EaE, FaE)."""

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        """(B, T, W) hidden states of a view, whose `spans` are the mentions to look up."""
        raise TypeError(f"{type(self).__name__} does not define forward")
