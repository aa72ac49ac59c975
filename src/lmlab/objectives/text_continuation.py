"""Continuation: the encoder learns to restore a text, then the decoder to go on with it (PALM).

Bi et al. 2020, PALM: Pre-training an Autoencoding & Autoregressive Language Model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lmlab.backbones.pointer_encoder_decoder import TwoOutputEncoderDecoder
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Emission, Network, weighted_cross_entropy
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import NO_TARGET, View
from lmlab.objectives.denoising_base import (
    CorruptedSource,
    DenoisingObjective,
    DenoisingSpecialTokens,
)
from lmlab.objectives.masking.token_masking import (
    MaskingStrategy,
    MaskReplacement,
    maskable_positions,
)


class PALMObjective(DenoisingObjective):
    """Stage one: -Σ_{t hidden} log q(s_t | what is shown), q at the encoder by its own `head`.
    Stage two: -log p(second part | first part, masked); `joint` adds stage one's of the first part.

    The first `stage_one_steps` steps of training show whole texts to the encoder alone; from then
    on it reads a share `first` of a text, from the left (Bi et al. 2020: 0.8), in which tokens are
    hidden as before, and the decoder writes the rest, at least one token (of a text that has only
    one: the end alone). Every predicted token counts alike. In stage two encoder and decoder are
    trained together by what the decoder writes (Bi et al. 2020; 004). Held-out text is asked stage
    two's question all along, since losses of two stages don't compare. A pair's first part is its
    source, clean.
    """

    def __init__(
        self,
        spelling: DenoisingSpecialTokens,
        choice: MaskingStrategy,
        replacement: MaskReplacement,
        head: Emission,
        *,
        first: float = 0.8,
        stage_one_steps: int = 0,
        joint: bool = False,
        whole: float = 0.0,
    ) -> None:
        super().__init__(spelling, whole=whole)
        self.choice = choice
        self.replacement = replacement
        self.head = head
        self.first = first
        self.stage_one_steps = stage_one_steps
        self.joint = joint
        self.stage = 2
        """1 while the encoder alone is trained. It depends on the step's number alone; who is not
        told of steps is past them."""

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
        places, cut = np.arange(len(tokens)), self.source_length(len(tokens))
        return CorruptedSource(tokens[:cut], places[:cut]), places[cut:]

    def source_length(self, time: int) -> int:
        """How many tokens of a text are its first part."""
        return min(int(self.first * time + 0.5), max(time - 1, 1))

    def masked(self, view: View, generator: torch.Generator | None) -> View:
        """A source with some of its tokens hidden, and asked at their own places."""
        batch = Batch(
            tokens=view.inputs,
            lengths=view.lengths,
            rows=torch.arange(len(view.inputs), device=view.inputs.device),
        )
        allowed = maskable_positions(batch, self.vocabulary) & (
            view.inputs != self.special_tokens.mask
        )
        chosen = self.choice(batch, allowed, generator=generator)
        place = torch.arange(view.inputs.shape[1], device=view.inputs.device)
        clean_positions = (
            place.expand_as(chosen) if view.clean_positions is None else view.clean_positions
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
        hidden, read = network.backbone.decoder_and_encoder_hidden(view)
        written = weighted_cross_entropy(view, network.predict(view, hidden))
        if view.targets is None or not self.joint:
            return written, None
        restored = self.masked_loss(view, read)
        parts = {"continuation": written, "masked": restored}
        return Loss(written.total + restored.total, written.count + restored.count, parts), None

    def masked_loss(self, view: View, read: Tensor) -> Loss:
        """Of the hidden tokens of a source, from the encoder's hidden states (B, S, W)."""
        assert view.targets is not None
        places = view.targets != NO_TARGET
        lost = -self.head.log_prob(read[places], view.targets[places])
        return Loss(lost.sum(), torch.tensor(float(lost.numel()), device=lost.device))
