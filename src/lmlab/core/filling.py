"""Systems that fill in masked tokens from all the others, and what they make of a whole text."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.framing import text_numbers
from lmlab.core.kinds import Kind
from lmlab.core.masked_copies import answers, each_by_itself, scored_places
from lmlab.core.parts import Network, Objective, Predictions, target_places
from lmlab.core.protocols import Head, LogProbs
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import NO_TARGET, View


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

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the score of one token (N,) for each hidden state (N, W)."""
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

    def log_prob_at(self, network: Network, batch: Batch, hidden: Tensor, asked: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `asked` (B, T), with those at `hidden` hidden."""
        targets = batch.tokens.masked_fill(~asked, NO_TARGET)
        view = replace(self.fill_view(batch, hidden), targets=targets)
        return network.target_log_probs(view).log_probs

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        assert isinstance(network, Assembly)
        found = answers(
            partial(self.log_prob_at, network),
            batch,
            each_by_itself(scored_places(batch, network.vocabulary)),
        )
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
        return Categorical(self.emission.log_probs(self.hidden_at(view, masked)))

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """As of every assembly; places without a target cost no more than others need of them."""
        if state is not None:
            return super().target_log_probs(view, state)
        places = target_places(view)
        assert view.targets is not None
        hidden = self.hidden_at(view, places)
        return Predictions(
            log_probs=self.emission.log_prob(hidden, view.targets[places]), places=places
        )

    def logits(
        self, batch: Batch, masked: Tensor, asked: Tensor | None = None, *, head: Head = "own"
    ) -> Tensor:
        """(N, V) scores before they are normalised, at `asked`, with `masked` hidden."""
        asked = masked if asked is None else asked
        hidden = self.hidden_at(self.objective.fill_view(batch, masked), asked)
        emission = self._scoring_emission
        if head == "own":
            return emission.logits(hidden) + emission.never
        return hidden @ self._token_vectors(hidden).T + emission.never

    def log_prob_at(self, batch: Batch, hidden: Tensor, asked: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `asked` (B, T), with those at `hidden` hidden.

        As `fill` gives them, without the distribution that they are part of.
        """
        return self.objective.log_prob_at(self, batch, hidden, asked)

    def logit_at(
        self, batch: Batch, hidden: Tensor, asked: Tensor, *, head: Head = "own"
    ) -> Tensor:
        """(N,) the scores, as `logits` gives them, of the tokens at `asked` (B, T) alone."""
        emission, targets = self._scoring_emission, batch.tokens[asked]
        values = self.hidden_at(self.objective.fill_view(batch, hidden), asked)
        if head == "own":
            scores = emission.logit(values, targets)
        else:
            scores = (values * self._token_vectors(values)[targets]).sum(-1)
        return scores + emission.never[targets]

    @property
    def _scoring_emission(self) -> ScoringEmission:
        if isinstance(self.emission, ScoringEmission):
            return self.emission
        raise UserError(
            f"{type(self.emission).__name__} has no scores before they are normalised; take a "
            "method of log-probabilities (norm)."
        )

    def _token_vectors(self, hidden: Tensor) -> Tensor:
        """(V, W) what hidden states (…, W) are multiplied with where they have no head."""
        weight = self._scoring_emission.weight
        if hidden.shape[-1] != weight.shape[-1]:
            raise UserError(
                f"hidden states have {hidden.shape[-1]} numbers and token vectors "
                f"{weight.shape[-1]}, so there is no inner product; keep its head."
            )
        return weight

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
        numbers = text_numbers(batch.tokens, self.vocabulary)
        if numbers is not None:
            view = replace(view, segments=numbers)
        return self.hidden(view).values
