"""Interfaces of emissions: logits of all tokens, energies, joint distributions."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.joint_distribution import PaddedJointDistribution
from lmlab.core.parts import (
    Emission,
)


class EnergyEmission(Emission):
    """Energy emission: a hidden state and the input token to an energy; no token distribution."""

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors"})
    outcomes: ClassVar[tuple[str, ...]] = ("made up", "data")
    """The two classes of a text."""

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """(…) of hidden states (…, W) at positions that hold `tokens` (…)."""
        raise TypeError(f"{type(self).__name__} does not define energies")


@runtime_checkable
class LogitEmission(Protocol):
    """An emission by inner products with token vectors."""

    weight: Tensor
    """(V, W) the token vectors."""
    never_predicted: Tensor
    """(V,) -inf at tokens that are never predicted, 0 elsewhere."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) logits of hidden states (…, W)."""
        ...

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the logit of one token (N,) for each hidden state (N, W)."""
        ...


class JointEmission(Emission):
    """Joint emission: hidden states at several masked positions to one distribution over all.

    As an emission it gives the distribution of a single masked position.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors"})

    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> PaddedJointDistribution:
        """The distribution given hidden states (B, n, W), of which `lengths` (B,) are masked.

        A generator is given in training only, for those that make random choices.
        """
        raise TypeError(f"{type(self).__name__} does not define joint")

    def joint_loss(
        self,
        hidden: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B,) training loss: minus the joint log-probability of tokens (B, n)."""
        return -self.joint(hidden, lengths, generator=generator).log_prob(tokens)
