"""Text continuation (PALM): masked LM pre-training of the encoder, then seq2seq continuation.

Bi et al. 2020, PALM: Pre-training an Autoencoding & Autoregressive Language Model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lmlab.backbones.encoder_decoder import TwoOutputEncoderDecoder
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Emission, Network, weighted_cross_entropy
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.objectives.denoising_base import (
    CorruptedSource,
    CorruptedTextObjective,
    DenoisingSpecialTokens,
)
from lmlab.objectives.masking.token_masking import (
    MaskingStrategy,
    MaskReplacement,
    maskable_positions,
)
from lmlab.objectives.objective_interfaces import sum_losses


class PALMObjective(CorruptedTextObjective):
    """PALM. Stage 1: -Σ_{t masked} log q(s_t | visible), q the encoder's own `head`.
    Stage 2: -log p(second part | first part, masked); `joint` adds the stage 1 loss.

    The first `stage_one_steps` steps train the encoder alone on whole texts; after that it
    encodes a share `first` of a text, from the left (Bi et al. 2020: 0.8), masked as before, and
    the decoder generates the rest, at least one token (only the end, if the text has one token).
    Every target counts alike. Stage 2 trains encoder and decoder jointly by the decoder's loss.
    Validation uses the stage 2 loss throughout, since the losses of the stages don't compare. A
    pair's first part is its source, unmasked.
    """

    def __init__(
        self,
        special_tokens: DenoisingSpecialTokens,
        choice: MaskingStrategy,
        replacement: MaskReplacement,
        head: Emission,
        *,
        first: float = 0.8,
        stage_one_steps: int = 0,
        joint: bool = False,
        full_mask_rate: float = 0.0,
    ) -> None:
        super().__init__(special_tokens, full_mask_rate=full_mask_rate)
        self.choice = choice
        self.replacement = replacement
        self.head = head
        self.first = first
        self.stage_one_steps = stage_one_steps
        self.joint = joint
        self.stage = 2
        """1 while only the encoder is trained. It depends on the step number alone; without step
        numbers, stage 2."""

    def begin_step(self, step: int) -> None:
        self.stage = 1 if step < self.stage_one_steps else 2

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        if self.training and self.stage == 1:
            text = batch if batch.condition is None else batch.condition
            return self.masked(self.source_view(text, len(text), text.tokens.device), generator)
        view = super().view(batch, generator=generator)
        return view if batch.condition is not None else self.masked(view, generator)

    def corrupt(
        self, tokens: np.ndarray, random: np.random.Generator
    ) -> tuple[CorruptedSource, np.ndarray]:
        positions, cut = np.arange(len(tokens)), self.source_length(len(tokens))
        return CorruptedSource(tokens[:cut], positions[:cut]), positions[cut:]

    def source_length(self, time: int) -> int:
        """Number of tokens in the first part of a text."""
        return min(int(self.first * time + 0.5), max(time - 1, 1))

    def masked(self, view: View, generator: torch.Generator | None) -> View:
        """A source with some tokens masked, which are the targets at their positions."""
        batch = Batch(
            tokens=view.inputs,
            lengths=view.lengths,
            rows=torch.arange(len(view.inputs), device=view.inputs.device),
        )
        allowed = maskable_positions(batch, self.vocabulary) & (
            view.inputs != self.special_tokens.mask
        )
        chosen = self.choice(batch, allowed, generator=generator)
        positions = torch.arange(view.inputs.shape[1], device=view.inputs.device)
        clean_positions = (
            positions.expand_as(chosen) if view.clean_positions is None else view.clean_positions
        )
        return replace(
            view,
            inputs=self.replacement(view.inputs, chosen, generator=generator),
            targets=view.inputs.masked_fill(~chosen, NO_TARGET),
            clean_positions=clean_positions,
        )

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        assert isinstance(network, Assembly) and isinstance(
            network.backbone, TwoOutputEncoderDecoder
        )
        view = self.view(batch, generator=generator)
        if view.decoder is None:
            return self.masked_loss(view, network.backbone.run_encoder(view)), None
        hidden, encoder_hidden = network.backbone.decoder_and_encoder_hidden(view)
        continuation = weighted_cross_entropy(view, network.predict(view, hidden))
        if view.targets is None or not self.joint:
            return continuation, None
        masked = self.masked_loss(view, encoder_hidden)
        parts = {"continuation": continuation, "masked": masked}
        return Loss(
            continuation.total + masked.total, continuation.count + masked.count, parts
        ), None

    def masked_loss(self, view: View, encoder_hidden: Tensor) -> Loss:
        """MLM loss of a source, from the encoder's hidden states (B, S, W)."""
        assert view.targets is not None
        target_mask = view.targets != NO_TARGET
        losses = -self.head.log_prob(encoder_hidden[target_mask], view.targets[target_mask])
        return sum_losses(losses)
