"""Systems that write a text from left to right: alone, or while they look at another."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.parts import Backbone, Objective
from lmlab.core.state import State
from lmlab.core.system import LeftToRight, SteppingState
from lmlab.core.view import View, left_to_right
from lmlab.core.visibility import Causal


class Writing(LeftToRight):
    """An assembly that predicts the next token and gives a vector for what it has read."""

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the hidden state of the last place that was read, the end symbol left out."""
        view = left_to_right(batch)
        values = self.hidden(view).values
        last = (view.lengths - 1).clamp(min=0)
        return values[torch.arange(len(values), device=values.device), last]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states, each of which has read the tokens up to its own."""
        view = View(inputs=batch.tokens, lengths=batch.lengths, visibility=Causal())
        return self.hidden(view).values


class SourceObjective(Objective):
    """An objective whose network looks at a source while it writes."""

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        """What the encoder sees of the sources, or where there are none."""
        raise TypeError(f"{type(self).__name__} does not define source_view")

    def opening(self) -> tuple[int, ...]:
        """Ids that the decoder is given before the first token it writes."""
        raise TypeError(f"{type(self).__name__} does not define opening")


class SourceBackbone(Backbone):
    """A backbone that reads a source and writes beside it; its hidden states are the writer's."""

    def read_source(self, view: View) -> Tensor:
        """(B, S, W) what the encoder makes of a source."""
        raise TypeError(f"{type(self).__name__} does not define read_source")

    def begin(self, view: View) -> State:
        """The decoder's state before its first input, for the source that a view shows."""
        raise TypeError(f"{type(self).__name__} does not define begin")


class SequenceToSequence(Writing):
    """An encoder and a decoder that writes left to right: p(text | source)."""

    backbone: SourceBackbone
    objective: SourceObjective

    def start(self, rows: int, *, condition: Batch | None = None) -> SteppingState:
        """The state of `rows` texts before their first token, each given its source."""
        device = next(self.parameters()).device
        view = self.objective.source_view(condition, rows, device)
        memory: State = self.backbone.begin(view)
        for token in self.objective.opening():
            state = self._step(memory, torch.full((rows,), token, device=device))
            memory = state.memory
        return state

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the mean of the encoder's hidden states over a text."""
        values, real = self.encode_tokens(batch), batch.mask()
        return (values * real[..., None]).sum(1) / batch.lengths[:, None]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states of a text."""
        view = self.objective.source_view(batch, len(batch), batch.tokens.device)
        return self.backbone.read_source(view)
