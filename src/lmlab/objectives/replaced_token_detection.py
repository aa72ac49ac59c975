"""Replaced token detection (ELECTRA): a discriminator detects a generator's replacements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Objective, prediction_mask, weighted_cross_entropy
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.layers.noise import sample_uniform

ORIGINAL, REPLACED = 0, 1
"""Labels of the discriminator."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CorruptedBatch:
    """The batch as corrupted by the generator."""

    log_probs: Tensor
    """(N,) the generator's log-probabilities of the masked tokens, its training signal."""
    tokens: Tensor
    """(B, T) the text with the generator's samples filled in."""
    masked: Tensor
    """(B, T) where it was masked."""


class ELECTRAObjective(Objective):
    """ELECTRA: mean_masked -log p_G(s_t | masked s) + λ · mean_all -log p_D(replaced or not | ŝ).

    Clark et al. 2020. ŝ is the text with samples from p_G at the masked positions. A sample that
    equals the original token counts as original. Sampling passes no gradient, so the generator is
    trained as a masked LM, not adversarially. Every real position is classified, <s> and </s> too;
    λ is 50 in the paper, since a binary label costs far fewer nats than a word. Cost: one pass of
    each network. The discriminator is no distribution over texts; log_prob is the generator's
    pseudo-log-likelihood as a masked language model. Without `detects_all` only masked positions
    are classified: the paper's ablation "ELECTRA 15%".
    """

    kind: ClassVar[ScoreKind] = "pseudo"
    extra_positions = 1  # the last token is an input too

    def __init__(
        self, generator: Assembly, *, weight: float = 50.0, detects_all: bool = True
    ) -> None:
        super().__init__()
        self.generator = generator
        self.weight = weight
        self.detects_all = detects_all

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        with torch.no_grad():
            corruption = self.corrupt(batch, generator=generator)
        return discriminator_view(batch, corruption.tokens)

    def clean_view(self, batch: Batch) -> View:
        """The uncorrupted text as discriminator input, aligned with the batch."""
        return discriminator_view(batch, batch.tokens)

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Both means over one count: the detection loss counts once per masked token."""
        corruption = self.corrupt(batch, generator=generator)
        view = discriminator_view(batch, corruption.tokens)
        if not self.detects_all:
            assert view.targets is not None
            view = replace(view, targets=view.targets.where(corruption.masked, NO_TARGET))
        detection = weighted_cross_entropy(view, network.target_log_probs(view))
        count = torch.tensor(float(len(corruption.log_probs)), device=batch.tokens.device)
        masked = Loss(-corruption.log_probs.sum(), count)
        total = masked.total + self.weight * detection.mean * count
        return Loss(total, count, {"masked": masked, "detection": detection}), None

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        return self.generator.log_prob(batch, generator=generator)

    def corrupt(self, batch: Batch, *, generator: torch.Generator | None = None) -> CorruptedBatch:
        """Mask some tokens and replace them by samples from the generator."""
        view = self.generator.objective.view(batch, generator=generator)
        target_mask = prediction_mask(view)
        assert view.targets is not None
        log_probs = self.generator.emission.log_probs(
            self.generator.hidden(view).values[target_mask]
        )
        targets = view.targets[target_mask]
        guesses = sample_gumbel(log_probs.detach(), generator=generator)
        return CorruptedBatch(
            log_probs=log_probs.gather(-1, targets[:, None]).squeeze(-1),
            tokens=batch.tokens.masked_scatter(target_mask, guesses),
            masked=target_mask,
        )


def sample_gumbel(log_probs: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """(N,) one sample per row of (N, V), by Gumbel noise; `generator` may be on another device."""
    noise = sample_uniform(log_probs.shape, log_probs.device, generator=generator)
    return (log_probs - (-noise.log()).log()).argmax(-1)


def discriminator_view(batch: Batch, inputs: Tensor) -> View:
    """Inputs (B, T); the targets say at real positions whether it differs from the batch."""
    real = batch.mask()
    positions = torch.arange(inputs.shape[1], device=inputs.device)
    labels = torch.where(inputs != batch.tokens, REPLACED, ORIGINAL)
    return View(
        inputs=inputs,
        lengths=batch.lengths,
        attention_mask=FullMask(),
        targets=labels.masked_fill(~real, NO_TARGET),
        clean_positions=positions.expand_as(inputs).masked_fill(~real, -1),
    )
