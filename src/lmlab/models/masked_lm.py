"""Systems that fill in masked tokens from all the others, and what they make of a whole text."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.parts import Predictions, prediction_mask
from lmlab.core.protocols import LMHead, TokenizerProtocol
from lmlab.core.special_tokens import segment_ids
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import View
from lmlab.emissions.emission_interfaces import LogitEmission
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.objective_interfaces import MaskedLMObjective


class MaskedLM(Assembly):
    """An assembly that fills masked tokens in, and gives a vector for a whole text."""

    objective: MaskedLMObjective
    validation_metric = "loss"

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
        places = prediction_mask(view)
        assert view.targets is not None
        hidden = self.hidden_at(view, places)
        return Predictions(
            log_probs=self.emission.log_prob(hidden, view.targets[places]), target_mask=places
        )

    def logits(
        self, batch: Batch, masked: Tensor, asked: Tensor | None = None, *, head: LMHead = "own"
    ) -> Tensor:
        """(N, V) scores before they are normalised, at `asked`, with `masked` hidden."""
        asked = masked if asked is None else asked
        hidden = self.hidden_at(self.objective.fill_view(batch, masked), asked)
        emission = self._logit_emission
        if head == "own":
            return emission.logits(hidden) + emission.never_predicted
        return hidden @ self._token_vectors(hidden).T + emission.never_predicted

    def log_prob_at(self, batch: Batch, hidden: Tensor, asked: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `asked` (B, T), with those at `hidden` hidden.

        As `fill` gives them, without the distribution that they are part of.
        """
        return self.objective.log_prob_at(self, batch, hidden, asked)

    def logit_at(
        self, batch: Batch, hidden: Tensor, asked: Tensor, *, head: LMHead = "own"
    ) -> Tensor:
        """(N,) the scores, as `logits` gives them, of the tokens at `asked` (B, T) alone."""
        emission, targets = self._logit_emission, batch.tokens[asked]
        values = self.hidden_at(self.objective.fill_view(batch, hidden), asked)
        if head == "own":
            scores = emission.logit(values, targets)
        else:
            scores = (values * self._token_vectors(values)[targets]).sum(-1)
        return scores + emission.never_predicted[targets]

    @property
    def _logit_emission(self) -> LogitEmission:
        if isinstance(self.emission, LogitEmission):
            return self.emission
        raise UserError(
            f"{type(self.emission).__name__} has no scores before they are normalised; take a "
            "method of log-probabilities (norm)."
        )

    def _token_vectors(self, hidden: Tensor) -> Tensor:
        """(V, W) what hidden states (…, W) are multiplied with where they have no head."""
        weight = self._logit_emission.weight
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
        numbers = segment_ids(batch.tokens, self.vocabulary)
        if numbers is not None:
            view = replace(view, segments=numbers)
        return self.hidden(view).values


class BERT(MaskedLM):
    """A model that fills masked tokens in, whose objective may want to know its tokeniser."""

    objective: BERTObjective

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        self.objective.setup_tokenizer(tokenizer)
