"""ELECTRA (replaced-token detection): a discriminator and a small generator of replacements."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Backbone, Emission
from lmlab.core.protocols import LogProbs
from lmlab.core.special_tokens import segment_ids
from lmlab.core.state import State
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.replaced_token_detection import ELECTRAObjective


class ReplacedTokenDetector(Assembly):
    """ELECTRA: a discriminator with two outcomes, 0 original and 1 replaced, and its generator."""

    objective: ELECTRAObjective
    # The discriminator's loss rises as the generator improves, so it cannot select an epoch.
    validation_metric = "masked"
    scorer_kind = "masked"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Emission,
        objective: ELECTRAObjective,
        missing_network: Literal["detector", "generator"] | None = None,
    ) -> None:
        """`missing_network`: the one that a checkpoint lacks, if it has only the other."""
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.missing_network = missing_network

    def detect(self, batch: Batch) -> Tensor:
        """(B, T) log-odds that the token at each position was replaced; -inf at padding."""
        self._check_discriminator()
        hidden = self.hidden(self.objective.clean_view(batch))
        original, replaced = self.emission.log_probs(hidden.values).unbind(-1)
        return (replaced - original).masked_fill(~batch.mask(), float("-inf"))

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the discriminator's hidden state at the first position."""
        return self.encode_tokens(batch)[:, 0]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the discriminator's hidden states; tokens after an end are the next segment."""
        self._check_discriminator()
        view = self.objective.clean_view(batch)
        segments = segment_ids(batch.tokens, self.vocabulary)
        if segments is not None:
            view = replace(view, segments=segments)
        return self.hidden(view).values

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the generator's distribution at each masked position, in reading order."""
        self._check_generator()
        generator_model = self.objective.generator
        assert isinstance(generator_model, MaskedLM)
        return generator_model.fill(batch, masked, generator=generator)

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        self._check_generator()
        return super().log_prob(batch, state=state, generator=generator)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        self._check_discriminator()
        self._check_generator()
        return super().loss(batch, state=state, generator=generator)

    def _check_generator(self) -> None:
        if self.missing_network == "generator":
            raise UserError(
                "this run has only a detector (its checkpoint has no generator), and scoring "
                "and filling need a generator; use it for a task with lmlab finetune, or import "
                "a folder that has generator/ in it."
            )

    def _check_discriminator(self) -> None:
        if self.missing_network == "detector":
            raise UserError(
                "this run has only a generator (its checkpoint has no detector), and detecting "
                "and encoding need the detector; use lmlab score or fill, or import a folder "
                "that has both."
            )
