"""Systems that ask by a query of its own what stands at a place, in whatever order."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import TwoStreamBackbone
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.special_tokens import segment_ids
from lmlab.core.state import State
from lmlab.models.causal_lm import (
    AutoregressiveLM,
    DecodingState,
)
from lmlab.objectives.objective_interfaces import TwoStreamObjective


class TwoStreamLM(AutoregressiveLM):
    """An assembly that was trained to predict in any order, and writes from left to right.

    A step adds content; the next token is looked for by a query at the place after it, which
    leaves no trace.
    """

    backbone: TwoStreamBackbone
    objective: TwoStreamObjective
    validation_metric = "loss"

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        device = next(self.parameters()).device
        tokens = torch.full((rows,), self.vocabulary.bos, device=device)
        segments = self.objective.segments(tokens[:, None])[:, 0]
        return self._asked(self.backbone.initial_state(rows), tokens, segments)

    def advance(self, state: DecodingState, tokens: Tensor) -> DecodingState:
        return self._asked(state.memory, tokens, torch.zeros_like(tokens))

    def _asked(self, memory: State, tokens: Tensor, segments: Tensor) -> DecodingState:
        after = self.backbone.step(memory, tokens, segments)
        return DecodingState(after, self.backbone.query_next(after, torch.zeros_like(tokens)), None)

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked place, these last in the order."""
        view = self.objective.fill_view(batch, masked)
        return Categorical(self.emission.log_probs(self.hidden(view).values[masked]))

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the mean of the content over a text, all of which sees all of it."""
        real = batch.mask()[..., None]
        return (self.encode_tokens(batch) * real).sum(1) / real.sum(1).clamp(min=1)

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the content stream, all of which sees all of the text.

        What stands behind an end symbol is of another segment, as that of a second text.
        """
        view = self.objective.content_view(batch)
        numbers = segment_ids(batch.tokens, self.vocabulary)
        if numbers is not None and view.segments is not None:
            view = replace(view, segments=view.segments.masked_fill(numbers == 1, 1))
        return self.hidden(view).values
