"""HMM backbone: the forward algorithm's predictive state distribution as the hidden state."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.inference.forward_algorithm import forward_filter
from lmlab.layers.hmm_parameters import HMMParameters, HMMTables

DROPPED_STATE_LOG_PROB = -80.0
"""Log-probability of a state that state dropout removed in an earlier batch."""


class HMMForward(Backbone):
    """Forward recursion: log p(z_{t+1} | s_≤t); the first input of a text is not evidence.

    Inputs (B, T), values (B, T, K) log-weights. Its state is the predictive distribution of the
    state that emits the next input, and whether the text has started (its start token was seen).
    """

    output_kind: ClassVar[str] = "states"
    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, markov: HMMParameters) -> None:
        super().__init__()
        self.markov = markov
        self.width = markov.states

    def initial_state(self, rows: int) -> TensorState:
        device = self.markov.block.device
        predicted = torch.zeros(rows, self.markov.states, device=device)
        opened = torch.zeros(rows, dtype=torch.bool, device=device)
        return TensorState({"predicted": predicted, "opened": opened})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        tables = self.markov.tables()
        block = tables.block[view.inputs]
        # Tokens that are never predicted (padding, start token) are no evidence about the states.
        untold = self.markov.never_predicted[view.inputs]
        emitted = F.embedding(view.inputs, tables.emission).masked_fill(untold[..., None], 0.0)
        first = tables.start.expand(len(view.inputs), -1)
        if previous["opened"].any():
            continued = forward_filter(
                _of_retained(previous["predicted"], tables),
                emitted[:, :1],
                block[:, :1],
                tables.transition,
            )[:, 0]
            first = torch.where(previous["opened"][:, None], continued, first)
        later = forward_filter(first, emitted[:, 1:], block[:, 1:], tables.transition)
        values = torch.cat([first[:, None], later.view(len(first), -1, first.shape[1])], dim=1)
        predicted = _of_all(values[:, -1], tables, self.markov.states)
        opened = torch.ones_like(previous["opened"])
        after = TensorState({"predicted": predicted, "opened": opened})
        return HiddenStates(values=values, state=after)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        tables = self.markov.tables()
        return {
            "transition": Capture(
                values=tables.transition.exp(),
                axes=("state", "next state"),
                caption="P(next state | state).",
                sums_to_one="next state",
            ),
            "start": Capture(
                values=tables.start.exp(),
                axes=("state",),
                caption="P(first state).",
                sums_to_one="state",
            ),
        }


def _of_retained(predicted: Tensor, tables: HMMTables) -> Tensor:
    """A distribution over all states, restricted to those that state dropout retained."""
    if tables.kept_states is None:
        return predicted
    return torch.log_softmax(predicted[:, tables.kept_states], dim=-1)


def _of_all(predicted: Tensor, tables: HMMTables, states: int) -> Tensor:
    """A distribution over retained states as one over all of them."""
    if tables.kept_states is None:
        return predicted
    spread = predicted.new_full((len(predicted), states), DROPPED_STATE_LOG_PROB)
    return spread.index_copy(1, tables.kept_states, predicted)
