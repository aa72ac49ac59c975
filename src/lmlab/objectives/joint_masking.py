"""Joint masked language modelling: likelihood of all masked tokens together, random mask count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.token_masking import (
    MaskingStrategy,
    maskable_positions,
    require_mask_token,
)
from lmlab.objectives.objective_interfaces import MaskedLMObjective


@dataclass(frozen=True, kw_only=True)
class UniformCountMasking:
    """Uniform-count masking of 1 … m positions of each text: with probability `spans` one
    contiguous span, else a random subset. m is `max_mask_rate` of the text, rounded, at least
    one."""

    max_mask_rate: float = 1.0
    spans: float = 0.5

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        # Sampled per row and position, so that a row's draws do not depend on the batch's width.
        uniforms = per_example_uniform((len(batch), 3), allowed.device, generator=generator)
        position_uniforms = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        count = allowed.sum(1)
        max_count = (self.max_mask_rate * count).round().clamp(min=1)
        target_count = torch.minimum((uniforms[:, 0] * max_count).floor() + 1, max_count).long()[
            :, None
        ]
        rank = position_uniforms.masked_fill(~allowed, 2.0).argsort(1).argsort(1)
        number = allowed.cumsum(1) - 1
        first = (uniforms[:, 1:2] * (count[:, None] - target_count + 1)).floor().long()
        span = (number >= first) & (number < first + target_count)
        return torch.where(uniforms[:, 2:] < self.spans, span, rank < target_count) & allowed


@runtime_checkable
class JointNetwork(Network, Protocol):
    """A network with a joint distribution over masked positions."""

    training: bool

    def marginals_at(self, batch: Batch, masked: Tensor, target_mask: Tensor) -> Tensor:
        """(N,) marginal log-probabilities at the `target_mask` positions, given `masked`."""
        ...

    def joint_loss(self, view: View, *, generator: torch.Generator | None = None) -> Tensor:
        """(B,) the loss of all masked positions of a text together."""
        ...


class JointMaskedLMObjective(MaskedLMObjective):
    """Joint MLM: -log p(all masked tokens | visible tokens), their joint likelihood.

    Masked tokens are always <mask>, as the input at a masked position is never used. The emission
    may minimise a surrogate where the likelihood has no tractable sum (Potts). log_prob is the
    pseudo-log-likelihood, masking one token at a time.
    """

    def __init__(self, vocabulary: Vocabulary, choice: MaskingStrategy) -> None:
        super().__init__()
        require_mask_token(vocabulary)
        self.vocabulary = vocabulary
        self.choice = choice

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        allowed = maskable_positions(batch, self.vocabulary)
        return self.fill_view(batch, self.choice(batch, allowed, generator=generator))

    def log_prob_at(
        self, network: Network, batch: Batch, masked: Tensor, target_mask: Tensor
    ) -> Tensor:
        """(N,) log-probabilities; the joint's marginals where more than one token is masked."""
        if torch.equal(masked, target_mask) and bool((masked.sum(1) <= 1).all()):
            return super().log_prob_at(network, batch, masked, target_mask)
        assert isinstance(network, JointNetwork)
        return network.marginals_at(batch, masked, target_mask)

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Joint loss over all masked positions, per masked token."""
        assert isinstance(network, JointNetwork)
        view = self.view(batch, generator=generator)
        assert view.clean_positions is not None
        exploration = generator if network.training else None
        losses = network.joint_loss(view, generator=exploration)
        return Loss(losses.sum(), (view.clean_positions >= 0).sum().float()), None
