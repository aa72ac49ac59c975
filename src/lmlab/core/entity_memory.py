"""Interface of entity memories between layers (KnowBert, EaE, FaE), and names of their outputs.

The names are keys of `MemoryOutput.outputs`, which objectives use; shapes are for a view with M
mentions and N known entities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor, nn

from lmlab.core.entity_mentions import MentionSpans
from lmlab.core.view import View

MENTION_TAGS = "tags"
"""(B, T, 3) log p(O, B, I) of each position: mention detection."""
MENTION_SPANS = "mentions"
"""(M, 3) the row, the first and the last position of each mention that was looked up."""
ENTITY_LOG_PROBS = "entities"
"""(M, N) log p(entity) of each mention."""
MASKED_MENTIONS = "asked"
"""(M,) bool: the Q masked mentions, for which facts are looked up."""
FACT_LOG_PROBS = "facts"
"""(Q, F + 1) log p(fact) of each masked mention, the null fact last."""
SUPPORTED_FACTS = "supported"
"""(Q, F + 1) bool: the facts that the text supports, as far as its mentions are annotated."""
ANSWER_LOG_PROBS = "answers"
"""(Q, N) log p(entity) of each masked mention, including facts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryOutput:
    """The output of a memory for the hidden states of a view."""

    values: Tensor
    """(B, T, W) the hidden states with the memory added."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """Lookups and their probabilities by name, for objectives and figures. The memory documents its
    names."""
    spans: MentionSpans | None = None
    """The mentions looked up, reused by later memories. None for the view's."""


class HiddenMemory(nn.Module, ABC):
    """Memory added to the hidden states after some layer (KnowBERT, EaE, FaE)."""

    @abstractmethod
    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        """(B, T, W) hidden states of a view, whose `spans` are the mentions to look up."""
