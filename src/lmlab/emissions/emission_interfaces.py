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
    """A hidden state and the token that was fed there to an energy; no distribution over tokens."""

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors"})
    outcomes: ClassVar[tuple[str, ...]] = ("made up", "data")
    """What is told of a text."""

    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """(…) of hidden states (…, W) at places that hold `tokens` (…)."""
        raise TypeError(f"{type(self).__name__} does not define energies")


@runtime_checkable
class LogitEmission(Protocol):
    """An emission by inner products with token vectors."""

    weight: Tensor
    """(V, W) the token vectors."""
    never_predicted: Tensor
    """(V,) -inf at tokens that are never predicted, 0 elsewhere."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) scores of hidden states (…, W)."""
        ...

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the score of one token (N,) for each hidden state (N, W)."""
        ...


class JointEmission(Emission):
    """Hidden states at several blanks of a text to one distribution over all their tokens.

    As an emission it gives what one blank has by itself.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors"})

    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> PaddedJointDistribution:
        """The distribution given hidden states (B, n, W), of which `lengths` (B,) are blanks.

        A generator is given in training alone, to those that choose something at random there.
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
        """(B,) what training minimises: minus the log-probability of tokens (B, n) together."""
        return -self.joint(hidden, lengths, generator=generator).log_prob(tokens)
