"""Masked language models (BERT): predict masked tokens from both sides, and encode texts."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.parts import Backbone, Emission, Predictions, prediction_mask
from lmlab.core.protocols import LMHead
from lmlab.core.score import ScorerKind
from lmlab.core.special_tokens import segment_ids
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import LogitEmission
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.objective_interfaces import MaskedLMObjective


class MaskedLM(Assembly):
    """Masked language model that also encodes texts."""

    objective: MaskedLMObjective
    validation_metric = "loss"
    scorer_kind: ClassVar[ScorerKind] = "masked"

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked position, in reading order."""
        view = self.objective.fill_view(batch, masked)
        return Categorical(self.emission.log_probs(self.hidden_at(view, masked)))

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Log-probabilities of a view's targets; the last layer is computed at targets only."""
        if state is not None:
            return super().target_log_probs(view, state)
        target_mask = prediction_mask(view)
        assert view.targets is not None
        hidden = self.hidden_at(view, target_mask)
        return Predictions(
            log_probs=self.emission.log_prob(hidden, view.targets[target_mask]),
            target_mask=target_mask,
        )

    def logits(
        self, batch: Batch, masked: Tensor, targets: Tensor | None = None, *, head: LMHead = "own"
    ) -> Tensor:
        """(N, V) unnormalised scores at `targets`, with `masked` masked."""
        targets = masked if targets is None else targets
        hidden = self.hidden_at(self.objective.fill_view(batch, masked), targets)
        emission = self._logit_emission
        if head == "own":
            return emission.logits(hidden) + emission.never_predicted
        return hidden @ self._token_vectors(hidden).T + emission.never_predicted

    def log_prob_at(self, batch: Batch, masked: Tensor, target_mask: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `target_mask` (B, T), given `masked` ones.

        As `fill` gives them, without materialising the distribution.
        """
        return self.objective.log_prob_at(self, batch, masked, target_mask)

    def logit_at(
        self, batch: Batch, masked: Tensor, target_mask: Tensor, *, head: LMHead = "own"
    ) -> Tensor:
        """(N,) the scores, as `logits` gives them, of the tokens at `target_mask` (B, T)."""
        emission, targets = self._logit_emission, batch.tokens[target_mask]
        values = self.hidden_at(self.objective.fill_view(batch, masked), target_mask)
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
            f"{type(self.emission).__name__} has no unnormalised scores; use a method of "
            "log-probabilities (norm)."
        )

    def _token_vectors(self, hidden: Tensor) -> Tensor:
        """(V, W) output embeddings to multiply hidden states (…, W) with, without a head."""
        weight = self._logit_emission.weight
        if hidden.shape[-1] != weight.shape[-1]:
            raise UserError(
                f"hidden states have width {hidden.shape[-1]} and token vectors "
                f"{weight.shape[-1]}, so they have no inner product; keep the model's head."
            )
        return weight

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the hidden state of the first position, which attends to the whole text."""
        return self.encode_tokens(batch)[:, 0]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states of the unmasked text.

        Tokens after an end token that is not the last belong to the next segment, as in training on
        pairs of texts.
        """
        view = self.objective.clean_view(batch)
        segments = segment_ids(batch.tokens, self.vocabulary)
        if segments is not None:
            view = replace(view, segments=segments)
        return self.hidden(view).values


class BERT(MaskedLM):
    """BERT: a masked LM whose objective may use the tokenizer."""

    objective: BERTObjective

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Emission,
        objective: BERTObjective,
        memrecall: MemRecallConfig | None = None,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.memrecall = memrecall

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        self.objective.setup_tokenizer(tokenizer)
