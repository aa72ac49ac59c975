"""Categorical distribution over the vocabulary: log-probability, inverse-CDF sampling, entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Categorical:
    """Normalised log-probabilities (…, V) over the vocabulary; -inf at impossible tokens."""

    log_probs: Tensor

    def log_prob(self, targets: Tensor) -> Tensor:
        """(…) log-probability of the given ids."""
        return self.log_probs.gather(-1, targets[..., None]).squeeze(-1)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(…) one id sampled for each row."""
        flat = self.log_probs.reshape(-1, self.log_probs.shape[-1]).exp()
        samples = torch.multinomial(flat, 1, generator=generator)
        return samples.reshape(self.log_probs.shape[:-1])

    @property
    def entropy(self) -> Tensor:
        """(…) entropy in nats; 0 log 0 counts as 0."""
        terms = self.log_probs.exp() * self.log_probs.clamp(min=-1e30)
        return -terms.sum(-1)


def inverse_cdf(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """(rows,) inverse-CDF sampling: ids at which the CDF of (rows, V) passes (rows, 1) of [0, 1).

    An id of probability zero is never returned.
    """
    sums = log_probs.double().exp().cumsum(-1)
    return torch.searchsorted(sums, uniforms.double() * sums[:, -1:], right=True).squeeze(-1)
