"""Span-boundary objective (SpanBERT): predict a masked span from the tokens at its boundary."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.core.loss import Loss
from lmlab.core.parts import Emission
from lmlab.core.view import NO_TARGET, View
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.objectives.objective_interfaces import sum_losses


class SpanBoundaryObjective(nn.Module):
    """SBO: -Σ_{t in a span (s … e)} log p(s_t | y_t),  y_t = f(h_{s-1}, h_{e+1}, p_{t-s}).

    Joshi et al. 2020: f is two layers of norm(gelu(W · + b)), p the embedding of the position
    within the span, with at most `max_positions` distinct ones. A span is a run of targets; hidden
    states inside it are not used. `emission` maps y (N, W) to tokens.
    """

    name: ClassVar[str] = "span boundary"
    EXPLANATION: ClassVar[str] = (
        "A masked word is predicted twice: at its own position, and from the boundaries of its "
        "span."
    )

    def __init__(self, width: int, emission: Emission, *, max_positions: int = 20) -> None:
        super().__init__()
        self.positions = nn.Embedding(max_positions, width)
        self.layers = nn.Sequential(
            nn.Linear(3 * width, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
        )
        init_transformer_weights(self, width)
        # After initialisation, because its vectors may be the network's own embedding.
        self.emission = emission

    def forward(self, view: View, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(N, W) y at each target, in reading order, and the target positions (B, T) bool."""
        before, after, target_mask = span_boundaries(view)
        rows, positions = target_mask.nonzero(as_tuple=True)
        left, right = before[target_mask], after[target_mask]
        within = (positions - left - 1).clamp(max=self.positions.num_embeddings - 1)
        outside = torch.cat([hidden[rows, left], hidden[rows, right], self.positions(within)], -1)
        return self.layers(outside), target_mask

    def loss(self, view: View, hidden: Tensor) -> Loss:
        """Negative log-likelihood of the masked tokens, as total and count."""
        vectors, target_mask = self(view, hidden)
        assert view.targets is not None
        losses = -self.emission.log_prob(vectors, view.targets[target_mask])
        return sum_losses(losses)


def span_boundaries(view: View) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T) last position before each run of targets and first after it, at the run's positions.

    And (B, T) bool, true at targets that have both boundaries within the text.
    """
    assert view.targets is not None
    target_mask = view.targets != NO_TARGET
    time = target_mask.shape[1]
    positions = torch.arange(time, device=target_mask.device).expand_as(target_mask)
    before = positions.masked_fill(target_mask, -1).cummax(1).values
    after = positions.masked_fill(target_mask, time).flip(1).cummin(1).values.flip(1)
    bounded = (before >= 0) & (after < view.lengths[:, None])
    return before, after, target_mask & bounded
