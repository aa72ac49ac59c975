"""Systems that fill in masked tokens from all the others, and what they make of a whole text."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.kinds import Kind
from lmlab.core.parts import Network, Objective
from lmlab.core.protocols import Head, LogProbs
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import View

TOKENS_AT_ONCE = 8192
"""Tokens of masked copies that are read together while a text is scored."""


@runtime_checkable
class ScoringEmission(Protocol):
    """An emission by inner products with token vectors."""

    weight: Tensor
    """(V, W) the token vectors."""
    never: Tensor
    """(V,) -inf at tokens that are never predicted, 0 elsewhere."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) scores of hidden states (…, W)."""
        ...


class FillingObjective(Objective):
    """An objective that trains a network to predict hidden tokens from those it shows.

    Its log_prob is the pseudo-log-likelihood of Salazar et al. 2020,

        PLL(s) = Σ_t log p(s_t | s without s_t),

    over all tokens but the end symbol, since how long the text is is given: the end counts 0. It is
    no log-probability: the conditionals need not come from one joint distribution. Cost: one pass
    for each token.
    """

    kind: ClassVar[Kind] = "pseudo"

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The clean batch with the places of `masked` (B, T) hidden and asked, and no others.

        It is aligned with the batch: place t of the view is place t of the batch.
        """
        raise TypeError(f"{type(self).__name__} does not define fill_view")

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        assert isinstance(network, Assembly)
        asked = batch.targets_mask()
        if network.vocabulary.end is not None:
            asked = asked & (batch.tokens != network.vocabulary.end)
        rows, places = asked.nonzero(as_tuple=True)
        found = torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        at_once = max(1, TOKENS_AT_ONCE // max(batch.tokens.shape[1], 1))
        for here in torch.arange(len(rows), device=rows.device).split(at_once):
            copies = batch.select(rows[here])
            hidden = torch.zeros_like(copies.tokens, dtype=torch.bool)
            hidden[torch.arange(len(here), device=here.device), places[here]] = True
            predictions = network.target_log_probs(self.fill_view(copies, hidden))
            found[rows[here], places[here]] = predictions.log_probs.to(found)
        return LogProbs(per_token=found[:, 1:], kind=self.kind)


class Filling(Assembly):
    """An assembly that fills masked tokens in, and gives a vector for a whole text."""

    objective: FillingObjective
    watched = "loss"

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked place, in reading order."""
        view = self.objective.fill_view(batch, masked)
        return Categorical(self.emission.log_probs(self.hidden(view).values[masked]))

    def logits(
        self, batch: Batch, masked: Tensor, asked: Tensor | None = None, *, head: Head = "own"
    ) -> Tensor:
        """(N, V) scores before they are normalised, at `asked`, with `masked` hidden."""
        asked = masked if asked is None else asked
        hidden = self.hidden(self.objective.fill_view(batch, masked)).values[asked]
        if not isinstance(self.emission, ScoringEmission):
            raise UserError(
                f"{type(self.emission).__name__} has no scores before they are normalised; take a "
                "method of log-probabilities (norm)."
            )
        if head == "own":
            return self.emission.logits(hidden) + self.emission.never
        if hidden.shape[-1] != self.emission.weight.shape[-1]:
            raise UserError(
                f"hidden states have {hidden.shape[-1]} numbers and token vectors "
                f"{self.emission.weight.shape[-1]}, so there is no inner product; keep its head."
            )
        return hidden @ self.emission.weight.T + self.emission.never

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the hidden state of the first place, which has seen all of the text."""
        return self.encode_tokens(batch)[:, 0]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states of the text with nothing hidden.

        What stands after an end symbol that is not the last is the next segment: two texts in one
        sequence are told apart as they were in training.
        """
        nothing = torch.zeros_like(batch.tokens, dtype=torch.bool)
        view = self.objective.fill_view(batch, nothing)
        if self.vocabulary.end is not None:
            ended = (batch.tokens == self.vocabulary.end).long()
            view = replace(view, segments=(ended.cumsum(1) - ended).clamp(max=1))
        return self.hidden(view).values
