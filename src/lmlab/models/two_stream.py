"""Permutation LM with two-stream attention (XLNet): filling, encoding, left-to-right generation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import TwoStreamBackbone
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.parts import initial_state
from lmlab.core.special_tokens import segment_ids
from lmlab.core.state import State
from lmlab.models.causal_lm import AutoregressiveLM, DecodingState
from lmlab.objectives.permutation_lm import PermutationLM


class TwoStreamLM(AutoregressiveLM):
    """Permutation language model with two-stream attention; generates from left to right.

    A step adds content; the next token is predicted by a query at the next position, which leaves
    the state unchanged.
    """

    backbone: TwoStreamBackbone
    objective: PermutationLM
    validation_metric = "loss"

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        device = next(self.parameters()).device
        tokens = torch.full((rows,), self.vocabulary.bos, device=device)
        segments = self.objective.segments(tokens[:, None])[:, 0]
        return self._step_and_query(initial_state(self.backbone, rows), tokens, segments)

    def advance(self, state: DecodingState, tokens: Tensor) -> DecodingState:
        return self._step_and_query(state.memory, tokens, torch.zeros_like(tokens))

    def _step_and_query(self, memory: State, tokens: Tensor, segments: Tensor) -> DecodingState:
        after = self.backbone.step(memory, tokens, segments)
        return DecodingState(after, self.backbone.query_next(after, torch.zeros_like(tokens)), None)

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked position, these last in factorisation order."""
        view = self.objective.fill_view(batch, masked)
        return Categorical(self.emission.log_probs(self.hidden(view).values[masked]))

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the mean of the content stream over a text, with full attention."""
        mask = batch.mask()[..., None]
        return (self.encode_tokens(batch) * mask).sum(1) / mask.sum(1).clamp(min=1)

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the content stream, with full attention.

        Tokens after an end token belong to the next segment.
        """
        view = self.objective.clean_view(batch)
        segments = segment_ids(batch.tokens, self.vocabulary)
        if segments is not None and view.segments is not None:
            view = replace(view, segments=view.segments.masked_fill(segments == 1, 1))
        return self.hidden(view).values
