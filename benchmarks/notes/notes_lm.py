"""The notes' recurrent language models with their normalisation over time, and causal ones.

Written from what the public code of the notes' author does (github.com/shouldsee/catsmile,
markov_lm/Model_NLM.py as of August 2022); no code of it is copied. For benchmarks only: with
`scaling="time"` every input depends on the whole padded sentence, so that what the module returns
are no conditional probabilities of the next token.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.layers.switch_cells import MGRUCell, MinimalGRUCell

Scaling = Literal["time", "channels", "none"]
"""What each input is divided by: the standard deviation of its channel over the sentence, future
words and padding included; that of its own entries; nothing."""
CellName = Literal["lstm", "rnn", "gru-minimal", "mgru"]


class NotesLM(nn.Module):
    """A recurrent cell between tied embeddings: ids (B, T) to log-probabilities (B, T, V).

    The first input is a vector of ones, the others are the embeddings of the ids, scaled. Hidden
    states are divided by the standard deviation of their entries. With `states` = K > 0 they choose
    among K vectors of unit deviation, each with a learned scale and a softmax over the vocabulary;
    with 0 they give a softmax themselves.
    """

    def __init__(
        self,
        size: int,
        *,
        cell: CellName = "lstm",
        scaling: Scaling = "time",
        states: int = 400,
        width: int = 128,
    ) -> None:
        super().__init__()
        self.cell, self.scaling, self.states, self.width = cell, scaling, states, width
        self.embedding = nn.Embedding(size, width)
        self.recurrence = _make_recurrence(cell, width)
        if cell != "lstm":  # whose initial state is ones
            self.start = nn.Parameter(torch.empty(width).uniform_(-1, 1))
        if states:
            self.choice = nn.Linear(width, states)
            self.vectors = nn.Parameter(torch.empty(states, width).uniform_(-1, 1) / states**0.5)
            self.log_scales = nn.Parameter(torch.empty(states, 1).uniform_(-1, 1) / states**0.5)

    def inputs(self, ids: Tensor) -> Tensor:
        """(B, 1 + T, W) the scaled inputs of the cell."""
        embedded = self.embedding(ids)
        first = torch.ones_like(embedded[:, :1])
        if self.scaling == "time":
            embedded = embedded / torch.cat([first, embedded], dim=1).std(dim=1, keepdim=True)
        elif self.scaling == "channels":
            embedded = _unit_deviation(embedded)
        return torch.cat([first, embedded], dim=1)

    def hidden(self, ids: Tensor) -> Tensor:
        """(B, T, W) the state after each id, of unit deviation."""
        inputs = self.inputs(ids)
        if isinstance(self.recurrence, nn.LSTM):
            ones = inputs.new_ones(1, len(ids), self.width)
            outputs, _ = self.recurrence(inputs, (ones, ones))
        elif isinstance(self.recurrence, nn.RNN):
            start = self.start.expand(1, len(ids), self.width)
            outputs, _ = self.recurrence(inputs, start.contiguous())
        else:
            start = self.start.sigmoid() if self.cell == "mgru" else self.start
            outputs, _ = self.recurrence.run(inputs, (start.expand(len(ids), self.width),))
        return _unit_deviation(outputs[:, 1:])

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T, V) log-probabilities of what follows each id."""
        hidden = self.hidden(ids)
        if not self.states:
            return F.log_softmax(hidden @ self.embedding.weight.T, dim=-1)
        words = F.log_softmax(self._state_logits(self.embedding.weight), dim=-1)
        choice = F.log_softmax(self.choice(hidden), dim=-1)
        return torch.logsumexp(choice[..., None] + words, dim=-2)

    def target_log_probs(self, ids: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
        """(N,) the log-probabilities of the targets (B, T) at the N true entries of `counted`."""
        hidden, wanted = self.hidden(ids)[counted], self.embedding(targets[counted])
        if not self.states:
            normaliser = (hidden @ self.embedding.weight.T).logsumexp(-1)
            return (hidden * wanted).sum(-1) - normaliser
        # Of the K · V logits only the normalisers and the targets' own are needed.
        normaliser = self._state_logits(self.embedding.weight).logsumexp(-1)
        words = self._state_logits(wanted).T - normaliser
        return torch.logsumexp(F.log_softmax(self.choice(hidden), dim=-1) + words, dim=-1)

    def _state_logits(self, embeddings: Tensor) -> Tensor:
        """(K, N) logits of N words in each state."""
        vectors = self.log_scales.exp() * _unit_deviation(self.vectors)
        return vectors @ embeddings.T


def _make_recurrence(cell: CellName, width: int) -> nn.Module:
    if cell == "lstm":
        return nn.LSTM(width, width, batch_first=True)
    if cell == "rnn":
        return nn.RNN(width, width, batch_first=True)
    if cell == "mgru":
        return MGRUCell(width, width, off=(4, 6))  # the notes' best set
    return MinimalGRUCell(width, width)


def _unit_deviation(vectors: Tensor) -> Tensor:
    """Vectors divided by the standard deviation of their entries."""
    return vectors / (vectors.std(dim=-1, keepdim=True) + 1e-10)
