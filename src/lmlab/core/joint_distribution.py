"""Joint distributions over several masked positions, and their ranked fillings."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.errors import LmlabWarning
from lmlab.core.protocols import JointDistribution
from lmlab.core.score_kind import ScoreKind

SEARCH_NOT_PROVEN = (
    "The search for the likeliest fillings was given up before it was sure; what is told is the "
    "best that was found."
)


@dataclass(frozen=True, kw_only=True)
class RankedFilling:
    """One filling of a row's blanks."""

    tokens: tuple[int, ...]
    log_prob: float
    """In nats, of all tokens together."""
    kind: ScoreKind = "exact"
    """pseudo where it is the sum of the tokens' conditionals, as their joint sum is not known."""
    proven: bool = True
    """Whether nothing that stands behind it in the ranking can be likelier."""


@runtime_checkable
class RankableJointDistribution(JointDistribution, Protocol):
    """A joint distribution that can tell its likeliest fillings in order."""

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The `count` likeliest fillings of one row's blanks, best first; fewer if there are."""
        ...


def most_probable_fillings(
    joint: RankableJointDistribution, rows: int, device: torch.device
) -> Tensor:
    """(N,) the likeliest tokens of each of `rows` rows; a warning where the search is not sure."""
    found = [joint.ranked(row, 1)[0] for row in range(rows)]
    if not all(each.proven for each in found):
        warnings.warn(SEARCH_NOT_PROVEN, LmlabWarning, stacklevel=3)
    tokens = [token for each in found for token in each.tokens]
    return torch.tensor(tokens, dtype=torch.int64, device=device)


class PaddedJointDistribution(Protocol):
    """A distribution of n tokens together for each of B rows, a row's blanks first.

    Behind a row's number of blanks anything may stand: it is not looked at.
    """

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) log-probability of each row's tokens (B, n), together; 0 for a row of none."""
        ...

    def prefix_log_probs(self, tokens: Tensor) -> Tensor:
        """(B, n) log-probability of each row's tokens up to each place, later ones unknown."""
        ...

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) tokens drawn together."""
        ...

    def marginals(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, V) log-probabilities of each place by itself, the others unknown."""
        ...

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The likeliest fillings of one row, best first."""
        ...
