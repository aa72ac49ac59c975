"""Pointer-generator copy mechanism (See et al. 2017): copy from a source or generate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_COPY_PROB = 1e-30
"""Lower limit of copy probabilities, so that their logarithm has a gradient."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyDistribution:
    """p(k) = λ p_gen(k) + (1 - λ) Σ_{j: x_j = k} α_j, at T positions given S source positions."""

    log_generation_prob: Tensor
    """(B, T) log λ; 0 if the source has nothing to copy."""
    copy_probs: Tensor
    """(B, T, S) (1 - λ) α_j; 0 at tokens that can't be copied."""
    source: Tensor
    """(B, S) the source tokens x_j."""

    def log_prob(self, generated: Tensor, target_mask: Tensor, targets: Tensor) -> Tensor:
        """(N,) log p of N targets at `target_mask` (B, T), given their log p_gen (N,)."""
        rows = target_mask.nonzero()[:, 0]
        same = self.source[rows] == targets[:, None]
        copied = (self.copy_probs[target_mask] * same).sum(-1)
        generated = generated + self.log_generation_prob[target_mask]
        either = torch.logaddexp(generated, copied.clamp(min=MIN_COPY_PROB).log())
        return torch.where(copied > 0, either, generated)

    def log_probs(self, generated: Tensor) -> Tensor:
        """(B, V) the whole distribution at the last position, given log p_gen there (B, V)."""
        copied = torch.zeros_like(generated).scatter_add(
            1, self.source, self.copy_probs[:, -1].to(generated)
        )
        return torch.logaddexp(generated + self.log_generation_prob[:, -1:], copied.log())

    def select(self, rows: Tensor) -> CopyDistribution:
        return CopyDistribution(
            log_generation_prob=self.log_generation_prob[rows],
            copy_probs=self.copy_probs[rows],
            source=self.source[rows],
        )

    def detach(self) -> CopyDistribution:
        log_prob, copy_probs = self.log_generation_prob.detach(), self.copy_probs.detach()
        return replace(self, log_generation_prob=log_prob, copy_probs=copy_probs)


class Pointer(nn.Module):
    """α = softmax_j(q(h_t) · k(x_j) / √W), λ = σ(w · [h_t; Σ_j α_j x_j] + b) (See et al. 2017).

    See et al. use additive scores; here they are scaled dot products.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(2 * width, 1)
        self.scale = 1 / math.sqrt(width)

    def forward(
        self, hidden: Tensor, encoder_hidden: Tensor, source: Tensor, copyable: Tensor
    ) -> CopyDistribution:
        """Copy distribution of decoder states (B, T, W), given encoder states (B, S, W).

        Of the source tokens (B, S) only the `copyable` (B, S) may be copied.
        """
        scores = self.query(hidden) @ self.key(encoder_hidden).transpose(1, 2) * self.scale
        # A finite number, since a source may have nothing to copy; such weights are dropped below.
        scores = scores.masked_fill(~copyable[:, None], torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, -1) * copyable[:, None]
        gate = self.gate(torch.cat([hidden, weights @ encoder_hidden], -1)).squeeze(-1)
        has_copyable = copyable.any(1, keepdim=True)
        return CopyDistribution(
            log_generation_prob=torch.where(has_copyable, F.logsigmoid(gate), 0.0),
            copy_probs=torch.sigmoid(-gate)[..., None] * weights,
            source=source,
        )
