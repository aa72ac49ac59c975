"""Base classes of training objectives, one for each family of models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.attention_mask import AttentionMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Network, Objective, Predictions
from lmlab.core.protocols import LogProbs, TokenizerProtocol
from lmlab.core.score import ScoreKind
from lmlab.core.special_tokens import SentinelTokens
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.pseudo_likelihood import (
    mask_each,
    score_masked_copies,
    scored_positions,
)

NOISE_LABEL, DATA_LABEL = 0, 1
"""Labels of a text: noise or data."""


class TwoStreamObjective(Objective):
    """Permutation objectives: the tokens of a text may be predicted in any order."""

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The batch with the positions of `masked` (B, T) last in the order, and predicted."""
        raise TypeError(f"{type(self).__name__} does not define fill_view")

    def content_view(self, batch: Batch) -> View:
        """The whole text with full attention and no targets, as in fine-tuning."""
        raise TypeError(f"{type(self).__name__} does not define content_view")

    def segments(self, tokens: Tensor) -> Tensor:
        """(B, T) segment ids of texts, from position 0 on."""
        raise TypeError(f"{type(self).__name__} does not define segments")


class ReplacedTokenDetectionObjective(Objective):
    """Replaced token detection: a generator replaces tokens, and a discriminator detects them.

    The discriminator is no distribution over texts; log_prob is the generator's
    pseudo-log-likelihood as a masked language model.
    """

    kind: ClassVar[ScoreKind] = "pseudo"
    generator: Assembly
    """The masked LM that replacements are sampled from, trained jointly; its loss is the `masked`
    part of the objective's."""

    def clean_view(self, batch: Batch) -> View:
        """The uncorrupted text as discriminator input, aligned with the batch."""
        raise TypeError(f"{type(self).__name__} does not define clean_view")

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        return self.generator.log_prob(batch, generator=generator)


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


class EnergyObjective(Objective):
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

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The clean batch with exactly the positions of `masked` (B, T) masked and predicted.

        It is aligned with the batch: position t of the view is position t of the batch.
        """
        raise TypeError(f"{type(self).__name__} does not define fill_view")

    def log_prob_at(self, network: Network, batch: Batch, hidden: Tensor, asked: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `asked` (B, T), with those at `hidden` masked."""
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
        found = score_masked_copies(
            partial(self.log_prob_at, network),
            batch,
            mask_each(scored_positions(batch, network.vocabulary)),
        )
        return LogProbs(per_token=found[:, 1:], kind=self.kind)


@runtime_checkable
class LatentNetwork(Protocol):
    """The network interface that latent-variable objectives require."""

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions: ...

    def state_from_latents(self, latents: Tensor) -> State:
        """The decoder's initial state."""
        ...


class LatentObjective(Objective):
    """Latent-variable objectives (VAE), which own the posterior and the prior."""

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) the posterior mean."""
        raise TypeError(f"{type(self).__name__} does not define encode")

    def sample_latents(self, rows: int, *, generator: torch.Generator | None = None) -> Tensor:
        """(rows, L) samples from the prior."""
        raise TypeError(f"{type(self).__name__} does not define sample_latents")


class AutoencoderObjective(Objective):
    """Autoencoding: reconstruct a sentence from its latent."""

    def reconstruct_with_noise(
        self,
        network: Network,
        batch: Batch,
        *,
        latent_noise: float,
        token_noise: float,
        generator: torch.Generator | None,
    ) -> LogProbs:
        """Reconstruction with noise of the given strength on latents and input tokens."""
        raise TypeError(f"{type(self).__name__} does not define reconstruct_with_noise")


class Seq2SeqObjective(Objective):
    """Sequence-to-sequence objectives: the decoder attends to an encoded source."""

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        """The encoder's view of the sources, or of the empty source."""
        raise TypeError(f"{type(self).__name__} does not define source_view")

    def decoder_prefix(self) -> tuple[int, ...]:
        """Ids that the decoder is given before the first generated token."""
        raise TypeError(f"{type(self).__name__} does not define decoder_prefix")


class ImageTextObjective(Seq2SeqObjective):
    """Image-to-text objectives: the source is an image, encoded as a text of numbers."""

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        """Receive the tokeniser, to learn which tokens are numbers."""
        raise TypeError(f"{type(self).__name__} does not define setup_tokenizer")


class SentinelObjective(Seq2SeqObjective):
    """Sentinel objectives (T5): generate whole texts, or spans masked by sentinels."""

    sentinels: SentinelTokens
    decoder_vocabulary: Vocabulary
    """Ids that the decoder generates: the tokeniser's, plus sentinels where separate."""

    def decoder_prefix(self, given: bool = False) -> tuple[int, ...]:
        """Decoder prefix before a text; `given` says whether there is a source."""
        raise TypeError(f"{type(self).__name__} does not define decoder_prefix")

    def encoder_view(self, batch: Batch) -> View:
        """The encoder's view of texts that are only encoded, from position 1 on."""
        raise TypeError(f"{type(self).__name__} does not define encoder_view")

    def infill_prefix(self) -> tuple[int, ...]:
        """Decoder prefix before the first of several spans."""
        raise TypeError(f"{type(self).__name__} does not define infill_prefix")

    def infill_source_view(self, batch: Batch) -> View:
        """The encoder's view of texts in which each mask token or sentinel is a blank."""
        raise TypeError(f"{type(self).__name__} does not define infill_source_view")

    def count_blanks(self, batch: Batch) -> Tensor:
        """(B,) number of blanks in each text of `infill_source_view`."""
        raise TypeError(f"{type(self).__name__} does not define count_blanks")
