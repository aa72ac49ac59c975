"""Seq2seq RNN decoders: plain, with Bahdanau attention, and with Luong attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmlab.backbones.recurrent import (
    WITHOUT_CAPTURES,
    join_states,
    split_state,
    stack_cells,
    stacked_cells,
    state_names,
)
from lmlab.core.state import TensorState
from lmlab.layers.recurrent_cells import CellState, RecurrentCell
from lmlab.layers.rnn_attention import DotAttention


class RNNDecoder(nn.Module):
    """Stacked cells initialised with the encoder's last states (Sutskever et al. 2014).

    With `everywhere` the encoder's last output is also part of every input (Cho et al. 2014), which
    widens the first cell's input. Tokens (B, T) and a state to hidden (B, T, W).
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cells: Sequence[RecurrentCell],
        *,
        dropout: float = 0.0,
        everywhere: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack_cells(cells, dropout, first_dropout=0.0)
        self.dropout = nn.Dropout(dropout)
        self.context_every_step = everywhere
        self.width = cells[-1].width

    def begin(
        self, values: Tensor, lengths: Tensor, encoder_states: Sequence[CellState]
    ) -> TensorState:
        """The state before the first token, given the encoded source (B, S, W) and last states."""
        tensors = {
            name: part
            for (layer, cell), state in zip(stacked_cells(self.stack), encoder_states, strict=True)
            for name, part in zip(state_names(layer, cell), state, strict=True)
        }
        if self.context_every_step:
            tensors["summary"] = encoder_states[-1][0]
        return TensorState(tensors)

    def free_state_widths(self) -> dict[str, int]:
        """The cells' own tensors in a state, with their widths."""
        return {
            name: cell.width
            for layer, cell in stacked_cells(self.stack)
            for name in state_names(layer, cell)
        }

    def forward(self, tokens: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        """Hidden states of further tokens, and the state after them."""
        inputs = self.dropout(self.embedding(tokens))
        if self.context_every_step:
            summary = state["summary"][:, None].expand(-1, tokens.shape[1], -1)
            inputs = torch.cat([inputs, summary], -1)
        values, after = self._run(inputs, state)
        return self.dropout(values), after

    def _run(self, inputs: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        """The cells over inputs (B, T, D); other tensors of the state are unchanged."""
        values, after = self.stack.step(inputs, WITHOUT_CAPTURES, split_state(self.stack, state))
        return values, TensorState({**state.tensors, **join_states(self.stack, after).tensors})


class AttentionDecoder(RNNDecoder, ABC):
    """RNN decoder with attention over the source: output o_t = tanh(A [h_t, c_t] + b).

    The state holds the encoded source, its keys and its padding mask.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cells: Sequence[RecurrentCell],
        attention: DotAttention,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(embedding, cells, dropout=dropout)
        self.attention = attention
        self.combine = nn.Linear(2 * self.width, self.width)

    def begin(
        self, values: Tensor, lengths: Tensor, encoder_states: Sequence[CellState]
    ) -> TensorState:
        position = torch.arange(values.shape[1], device=values.device)
        return TensorState(
            {
                **super().begin(values, lengths, encoder_states).tensors,
                "source": values,
                "keys": self.attention.keys(values),
                "behind": position >= lengths[:, None],
            }
        )

    def forward(self, tokens: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        values, _, after = self.decode_with_attention(tokens, state)
        return values, after

    @abstractmethod
    def decode_with_attention(
        self, tokens: Tensor, state: TensorState
    ) -> tuple[Tensor, Tensor, TensorState]:
        """Hidden (B, T, W), attention weights (B, T, S), and the state after them."""

    def _attend(self, queries: Tensor, state: TensorState) -> tuple[Tensor, Tensor]:
        attended: tuple[Tensor, Tensor] = self.attention(
            queries, state["keys"], state["source"], state["behind"]
        )
        return attended

    def _combined(self, values: Tensor, contexts: Tensor) -> Tensor:
        combined = self.combine(torch.cat([values, contexts], -1)).tanh()
        dropped: Tensor = self.dropout(combined)
        return dropped


class BahdanauDecoder(AttentionDecoder):
    """Bahdanau attention: the query is h_{t-1}; h_t = cell([e(s_{t-1}), c_t], h_{t-1}).

    p_i = softmax_i(score(h_{t-1}, k_i)) (Bahdanau et al. 2015). Sequential over steps.
    """

    def decode_with_attention(
        self, tokens: Tensor, state: TensorState
    ) -> tuple[Tensor, Tensor, TensorState]:
        top = state_names(*stacked_cells(self.stack)[-1])[0]
        inputs = self.dropout(self.embedding(tokens))
        hidden, contexts, weights = [], [], []
        for vector in inputs.split(1, dim=1):
            context, weight = self._attend(state[top][:, None], state)
            value, state = self._run(torch.cat([vector, context], -1), state)
            hidden.append(value)
            contexts.append(context)
            weights.append(weight)
        values = self._combined(torch.cat(hidden, 1), torch.cat(contexts, 1))
        return values, torch.cat(weights, 1), state


class LuongDecoder(AttentionDecoder):
    """Luong attention: query h_t = cell(e(s_{t-1}), h_{t-1}), context added after the cell.

    With `input_feeding`, o_{t-1} is part of the input, so that the decoder knows its past attention
    (Luong et al. 2015), and steps are sequential; without, attention is computed for all at once.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cells: Sequence[RecurrentCell],
        attention: DotAttention,
        *,
        dropout: float = 0.0,
        input_feeding: bool = False,
    ) -> None:
        super().__init__(embedding, cells, attention, dropout=dropout)
        self.input_feeding = input_feeding

    def begin(
        self, values: Tensor, lengths: Tensor, encoder_states: Sequence[CellState]
    ) -> TensorState:
        state = super().begin(values, lengths, encoder_states)
        if not self.input_feeding:
            return state
        return TensorState({**state.tensors, "fed": torch.zeros_like(encoder_states[-1][0])})

    def decode_with_attention(
        self, tokens: Tensor, state: TensorState
    ) -> tuple[Tensor, Tensor, TensorState]:
        inputs = self.dropout(self.embedding(tokens))
        if not self.input_feeding:
            return self._decode_segment(inputs, state)
        hidden, weights = [], []
        for vector in inputs.split(1, dim=1):
            joined = torch.cat([vector, state["fed"][:, None]], -1)
            value, weight, state = self._decode_segment(joined, state)
            state = TensorState({**state.tensors, "fed": value[:, 0]})
            hidden.append(value)
            weights.append(weight)
        return torch.cat(hidden, 1), torch.cat(weights, 1), state

    def _decode_segment(
        self, inputs: Tensor, state: TensorState
    ) -> tuple[Tensor, Tensor, TensorState]:
        values, state = self._run(inputs, state)
        contexts, weights = self._attend(values, state)
        return self._combined(values, contexts), weights, state
