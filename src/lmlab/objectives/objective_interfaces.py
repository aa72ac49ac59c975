"""Base classes of objectives, one for each family of models that can be trained by them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.attention_mask import (
    AttentionMask,
)
from lmlab.core.batch import Batch
from lmlab.core.parts import (
    Network,
    Objective,
    Predictions,
)
from lmlab.core.protocols import LogProbs, TokenizerProtocol
from lmlab.core.score_kind import ScoreKind
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
"""What is told of a text: that it was made up, or that it is one of the data."""


class TwoStreamObjective(Objective):
    """An objective for which the tokens of a text may come in any order."""

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """The batch with the places of `masked` (B, T) last in the order, and those asked."""
        raise TypeError(f"{type(self).__name__} does not define fill_view")

    def content_view(self, batch: Batch) -> View:
        """The whole text at once and nothing asked, as in fine-tuning."""
        raise TypeError(f"{type(self).__name__} does not define content_view")

    def segments(self, tokens: Tensor) -> Tensor:
        """(B, T) the segments of texts from their place 0 on."""
        raise TypeError(f"{type(self).__name__} does not define segments")


class ReplacedTokenDetectionObjective(Objective):
    """An objective that lets its own generator replace tokens, and trains a network to find them.

    The detector is no distribution over texts; the generator has the pseudo-log-likelihood of a
    masked model, and that is the log_prob.
    """

    kind: ClassVar[ScoreKind] = "pseudo"
    generator: Assembly
    """The masked model that the replacements are drawn from, trained along; its loss is the part
    `masked` of the objective's."""

    def clean_view(self, batch: Batch) -> View:
        """A text as it stands, for the detector to judge; it is aligned with the batch."""
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
    """How the energies of the places of a text become one, given which of them are blanks.

    What is not a blank is the template that the blanks stand in (000).
    """

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        """Who may see whom, where `blanks` (B, T) are true."""
        ...

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        """(B, T) the places whose energy counts; `real` (B, T) are those that hold a token."""
        ...


class EnergyObjective(Objective):
    """An objective that tells data from texts that were made up, by an energy of the whole text.

    Its view holds both, with one target a row: DATA or OTHER, asked at the row's blank.
    """

    kind: ClassVar[ScoreKind] = "unnormalised"
    pooling: EnergyPooling
    negatives: int
    """How many texts are made up for each of the data."""


class MaskedLMObjective(Objective):
    """An objective that trains a network to predict hidden tokens from those it shows.

    Its log_prob is the pseudo-log-likelihood of Salazar et al. 2020,

        PLL(s) = Σ_t log p(s_t | s without s_t),

    over all tokens but the end symbol, since how long the text is is given: the end counts 0. It is
    no log-probability: the conditionals need not come from one joint distribution. Cost: one pass
    for each token.
    """

    kind: ClassVar[ScoreKind] = "pseudo"

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
        found = score_masked_copies(
            partial(self.log_prob_at, network),
            batch,
            mask_each(scored_positions(batch, network.vocabulary)),
        )
        return LogProbs(per_token=found[:, 1:], kind=self.kind)


@runtime_checkable
class LatentNetwork(Protocol):
    """What an objective with a latent asks of the network it trains."""

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions: ...

    def state_from_latents(self, latents: Tensor) -> State:
        """The decoder's state before the first token."""
        ...


class LatentObjective(Objective):
    """An objective that owns the posterior and the prior of a latent."""

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) the posterior's mean."""
        raise TypeError(f"{type(self).__name__} does not define encode")

    def sample_latents(self, rows: int, *, generator: torch.Generator | None = None) -> Tensor:
        """(rows, L) from the prior."""
        raise TypeError(f"{type(self).__name__} does not define draw_latents")


class AutoencoderObjective(Objective):
    """An objective that asks a sentence back."""

    def reconstruct_with_noise(
        self,
        network: Network,
        batch: Batch,
        *,
        latent_noise: float,
        token_noise: float,
        generator: torch.Generator | None,
    ) -> LogProbs:
        """The reconstruction with latents disturbed and tokens erased by as much as is asked."""
        raise TypeError(f"{type(self).__name__} does not define under_noise")


class Seq2SeqObjective(Objective):
    """An objective whose network looks at a source while it writes."""

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        """What the encoder sees of the sources, or where there are none."""
        raise TypeError(f"{type(self).__name__} does not define source_view")

    def decoder_prefix(self) -> tuple[int, ...]:
        """Ids that the decoder is given before the first token it writes."""
        raise TypeError(f"{type(self).__name__} does not define opening")


class ImageTextObjective(Seq2SeqObjective):
    """An objective whose source is an image, told as a text of numbers."""

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        """Told which tokens are numbers."""
        raise TypeError(f"{type(self).__name__} does not define meet_tokenizer")


class SentinelObjective(Seq2SeqObjective):
    """An objective whose network writes whole texts, and stretches hidden behind sentinels."""

    sentinels: SentinelTokens
    decoder_vocabulary: Vocabulary
    """The ids that the decoder writes: the tokeniser's, and the sentinels where they are others."""

    def decoder_prefix(self, given: bool = False) -> tuple[int, ...]:
        """What the decoder is given before a text; `given` tells whether there is a source."""
        raise TypeError(f"{type(self).__name__} does not define opening")

    def encoder_view(self, batch: Batch) -> View:
        """What the encoder sees of texts that are just read, from place 1 of each on."""
        raise TypeError(f"{type(self).__name__} does not define reading_view")

    def infill_prefix(self) -> tuple[int, ...]:
        """What the decoder is given before the first of several stretches."""
        raise TypeError(f"{type(self).__name__} does not define blank_opening")

    def infill_source_view(self, batch: Batch) -> View:
        """What the encoder sees of texts in which each mask symbol, or sentinel, is a blank."""
        raise TypeError(f"{type(self).__name__} does not define blanked_view")

    def count_blanks(self, batch: Batch) -> Tensor:
        """(B,) how many blanks each text of `infill_source_view` has."""
        raise TypeError(f"{type(self).__name__} does not define count_blanks")
