"""Joint distributions of a row's masked tokens, padded to a batch, and their k-best fillings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.errors import LmlabWarning
from lmlab.core.protocols import JointDistribution
from lmlab.core.score import ScoreKind

SEARCH_NOT_PROVEN = (
    "The search for the most probable fillings stopped before it could prove the optimum; the "
    "best ones so far are reported."
)


@dataclass(frozen=True, kw_only=True)
class RankedFilling:
    """One filling of a row's masked positions."""

    tokens: tuple[int, ...]
    log_prob: float
    """Joint log-probability of all tokens, in nats."""
    kind: ScoreKind = "exact"
    """pseudo if it is a sum of conditionals because the joint normaliser is unknown."""
    proven: bool = True
    """Whether it is proven that nothing ranked below it is more probable."""


@runtime_checkable
class RankableJointDistribution(JointDistribution, Protocol):
    """A joint distribution with k-best fillings."""

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The `count` most probable fillings of one row, best first; fewer if there are fewer."""


def most_probable_fillings(
    joint: RankableJointDistribution, rows: int, device: torch.device
) -> Tensor:
    """(N,) the most probable tokens of each of `rows` rows; warns if the search is not exact."""
    fillings = [joint.ranked(row, 1)[0] for row in range(rows)]
    if not all(filling.proven for filling in fillings):
        warnings.warn(SEARCH_NOT_PROVEN, LmlabWarning, stacklevel=3)
    tokens = [token for filling in fillings for token in filling.tokens]
    return torch.tensor(tokens, dtype=torch.int64, device=device)


class PaddedJointDistribution(Protocol):
    """Joint distribution of n tokens for each of B rows, a row's masked positions first.

    Entries beyond a row's number of masked positions are ignored.
    """

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) joint log-probability of each row's tokens (B, n); 0 for an empty row."""

    def prefix_log_probs(self, tokens: Tensor) -> Tensor:
        """(B, n) log-probability of each prefix of a row's tokens, later ones marginalised out."""

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) tokens sampled jointly."""

    def marginals(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, V) marginal log-probabilities of each position."""

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The most probable fillings of one row, best first."""
