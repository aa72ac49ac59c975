"""Output-layer (emission) interfaces: energy, logits, joint; tied output embedding; token mask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.joint_distribution import PaddedJointDistribution
from lmlab.core.parts import Emission, OutputLayer
from lmlab.core.vocabulary import Vocabulary


def output_embedding(
    width: int, vocabulary: Vocabulary, tied: nn.Embedding | None
) -> nn.Parameter | Tensor:
    """(V, W) output vectors: a tied input embedding (Press and Wolf 2017), or free ones."""
    if tied is not None:
        assert tied.embedding_dim == width, "a tied embedding has the hidden width"
        return tied.weight
    # Short vectors: where only the direction matters, shorter ones rotate faster.
    return nn.Parameter(torch.empty(vocabulary.size, width).uniform_(-(width**-0.5), width**-0.5))


def never_predicted_mask(vocabulary: Vocabulary) -> Tensor:
    """(V,) zeros, with -inf at the tokens that are never predicted."""
    never = torch.zeros(vocabulary.size)
    never[list(vocabulary.unpredictable)] = float("-inf")
    return never


def usage_capture(weights: Tensor, caption: str) -> Capture:
    """Mean weight of each of K states over all positions, of weights (…, K)."""
    values = weights.flatten(0, -2).mean(0)
    return Capture(values=values, axes=("state",), caption=caption, sums_to_one="state")


STATE_USAGE = "Share of all predictions that each state carries; a state near zero is unused."


class EnergyEmission(OutputLayer, ABC):
    """Energies: a hidden state and the input token to an energy; no token distribution."""

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors"})
    outcomes: ClassVar[tuple[str, ...]] = ("made up", "data")
    """The two classes of a text."""

    @abstractmethod
    def energies(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """(…) of hidden states (…, W) at positions that hold `tokens` (…)."""


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

    @abstractmethod
    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> PaddedJointDistribution:
        """The distribution given hidden states (B, n, W), of which `lengths` (B,) are masked.

        A generator is given in training only, for those that make random choices.
        """

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


class UnaryJointEmission(JointEmission):
    """Joint emission whose unary potentials are the logits of a softmax head."""

    def __init__(self, unary: LogitEmission) -> None:
        super().__init__()
        self.unary = unary

    @property
    def weight(self) -> Tensor:
        """(V, W) token vectors."""
        return self.unary.weight

    @property
    def never_predicted(self) -> Tensor:
        """(V,) -inf at tokens that are never predicted, 0 elsewhere."""
        return self.unary.never_predicted

    def log_probs(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.logits(hidden) + self.never_predicted, dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) logits of a single masked position."""
        return self.unary.logits(hidden)

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the logit of one token for each hidden state (N, W)."""
        return self.unary.logit(hidden, targets)
