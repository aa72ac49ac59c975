"""Base classes of training objectives: energy (NCE), masked LM, latent-variable, seq2seq."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import AttentionMask
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Objective, Predictions, TrainingObjective
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.pseudo_likelihood import (
    mask_each,
    score_masked_copies,
    scored_positions,
)
from lmlab.objectives.masking.token_masking import masked_view, require_mask_token

NOISE_LABEL, DATA_LABEL = 0, 1
"""Labels of a text: noise or data."""


class EnergyPooling(Protocol):
    """How per-position energies are pooled into the energy of a text, given its blanks.

    All other positions are the template around the blanks.
    """

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        """The attention mask, where `blanks` (B, T) are true."""
        ...

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        """(B, T) positions whose energy counts; `real` (B, T) are those that hold a token."""
        ...


class EnergyObjective(TrainingObjective):
    """Noise-contrastive training of a text's energy: classify data against noise texts.

    The view holds both, with one target per row, DATA_LABEL or NOISE_LABEL, at the row's blank.
    """

    kind: ClassVar[ScoreKind] = "unnormalised"
    pooling: EnergyPooling
    negatives: int
    """Noise texts per data text."""


class MaskedLMObjective(Objective):
    """Masked language modelling: predict masked tokens from the visible ones.

    log_prob is the pseudo-log-likelihood of Salazar et al. 2020,

        PLL(s) = Σ_t log p(s_t | s without s_t),

    over all tokens but the end token: the length is given, so the end scores 0. It is no
    log-probability: the conditionals need not come from one joint distribution. Cost: one pass per
    token.
    """

    kind: ClassVar[ScoreKind] = "pseudo"
    extra_positions = 1  # the last token is an input too
    vocabulary: Vocabulary

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The clean batch with exactly the positions of `masked` (B, T) masked and predicted.

        It is aligned with the batch: position t of the view is position t of the batch.
        """
        inputs = batch.tokens.masked_fill(masked, require_mask_token(self.vocabulary))
        return masked_view(batch, inputs, masked)

    def clean_view(self, batch: Batch) -> View:
        """The whole text, with nothing masked or predicted."""
        return self.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))

    def log_prob_at(
        self, network: Network, batch: Batch, masked: Tensor, target_mask: Tensor
    ) -> Tensor:
        """(N,) log-probabilities of the tokens at `target_mask` (B, T), given `masked` ones."""
        targets = batch.tokens.masked_fill(~target_mask, NO_TARGET)
        view = replace(self.fill_view(batch, masked), targets=targets)
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
        scores = score_masked_copies(
            partial(self.log_prob_at, network),
            batch,
            mask_each(scored_positions(batch, network.vocabulary)),
        )
        return LogProbs(per_token=scores[:, 1:], kind=self.kind)


@runtime_checkable
class LatentNetwork(Protocol):
    """The network interface that latent-variable objectives require."""

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions: ...

    def state_from_latents(self, latents: Tensor) -> State:
        """The decoder's initial state."""
        ...


class Seq2SeqObjective(Objective):
    """Sequence-to-sequence objectives: the decoder attends to an encoded source."""

    extra_positions = 1  # of the encoder, which reads a source with its last token

    @abstractmethod
    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        """The encoder's view of the sources, or of the empty source."""

    @abstractmethod
    def decoder_prefix(self) -> tuple[int, ...]:
        """Ids that the decoder is given before the first generated token."""


def sum_losses(losses: Tensor) -> Loss:
    """The sum of single losses, and their number as the count."""
    return Loss(losses.sum(), torch.tensor(float(losses.numel()), device=losses.device))
