"""What a Markov chain over texts is to visit: the energy E of a text, with π(x) ∝ exp(-E(x) / τ).

A masked model defines no distribution over texts by itself; these are the energies that people
have read out of it (Goyal et al. 2022), beside those of systems that are energies outright.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import Energy, Fill, Logits, LogProb, LogProbs, require
from lmlab.data.collation import group_by_length
from lmlab.scoring.pseudo_log_likelihood import masked_token_scores

TOKENS_PER_BATCH = 8192
"""Tokens that are read together."""


class EnergyFunction(Protocol):
    """The energy of texts."""

    @property
    def name(self) -> str:
        """As it is asked for: raw, norm, own."""
        ...

    @property
    def formula(self) -> str:
        """For people: E(x) = …"""
        ...

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B,) E of each text, in nats, as doubles; infinite where a text can't be.

        `blanks` (B, T) bool: the places that are not of a template, for energies that tell the two
        apart; None where there is no template.
        """
        ...


@dataclass(frozen=True)
class LogitEnergy:
    """E(x) = -Σ_t logit(x_t | x without x_t): scores of a masked model before they are normalised.

    Goyal et al. 2022, their E_raw. The end symbol is not summed. Cost: a pass for each token.
    """

    system: Any = field(repr=False)
    name: str = "raw"
    formula: str = "-Σ_t logit(x_t | x without x_t)"

    def __post_init__(self) -> None:
        require(self.system, Logits, "the raw energy")

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        scores = masked_token_scores(self.system, batch, method="raw")
        return _checked(-scores.double().sum(1))


@dataclass(frozen=True)
class PseudoLikelihoodEnergy:
    """E(x) = -Σ_t log p(x_t | x without x_t): minus the pseudo-log-likelihood.

    Goyal et al. 2022, their E_norm; Salazar et al. 2020. Cost: a pass for each token.
    """

    system: Any = field(repr=False)
    name: str = "norm"
    formula: str = "-Σ_t log p(x_t | x without x_t)"

    def __post_init__(self) -> None:
        require(self.system, Fill, "the normalised energy")

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        scores = masked_token_scores(self.system, batch, method="norm")
        return _checked(-scores.double().sum(1))


@dataclass(frozen=True)
class SystemEnergy:
    """E(x) of a system that has one, or E(x, blanks) where it tells a template from its blanks.

    The template's tokens are the same in all texts of a chain, but a pooling that leaves them out
    or keeps them from seeing the blanks gives these another law. Cost: one pass.
    """

    system: Any = field(repr=False)
    name: str = "own"
    formula: str = "the system's own energy"

    def __post_init__(self) -> None:
        require(self.system, Energy, "its own energy")

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        if blanks is None or "blanks" not in inspect.signature(self.system.energy).parameters:
            return _in_groups(batch, lambda rows: self.system.energy(batch.select(rows)))
        return _in_groups(
            batch, lambda rows: self.system.energy(batch.select(rows), blanks=blanks[rows])
        )


@dataclass(frozen=True)
class LogProbEnergy:
    """E(x) = -log p(x) of a system whose log-probability is exact; one pass.

    So the chain is to visit texts as often as the system itself says, among those of a length.
    """

    system: Any = field(repr=False)
    name: str = "own"
    formula: str = "-log p(x)"

    def __post_init__(self) -> None:
        require(self.system, LogProb, "minus the log-probability as an energy")

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        return _in_groups(batch, lambda rows: -self._found(batch.select(rows)).totals)

    def _found(self, batch: Batch) -> LogProbs:
        found = cast(LogProbs, self.system.log_prob(batch))
        if found.kind != "exact":
            raise UserError(
                f"the log-probability of this system is of the kind {found.kind}, which is no law "
                "of texts; take the energy raw or norm."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class LengthPenalisedEnergy:
    """E(x) + cost · |x|, for chains that change the length of a text.

    An energy says nothing of how likely lengths are: under π(x) ∝ exp(-E(x) / τ) over texts of all
    lengths, a length L comes with probability ∝ Z_L, the sum of exp(-E(x) / τ) over its texts.
    With a cost for each token that is exp(-cost L / τ) Z_L.
    """

    target: EnergyFunction
    cost: float = 0.0
    special_token_count: int = 2
    """Symbols around a text in its row: <s>, and </s> where there is one."""

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def formula(self) -> str:
        return f"{self.target.formula} + {self.cost:g} |x|" if self.cost else self.target.formula

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        energies = self.target.energies(batch, blanks)
        return energies + self.cost * (batch.lengths - self.special_token_count).to(energies)


def make_energy(system: Any, name: str | None = None) -> EnergyFunction:
    """The energy of that name, or the one that a system is best described by.

    own for systems with `Energy` and those with an exact log-probability, else raw, else norm.
    """
    exact = isinstance(system, LogProb) and _says_exact(system)
    if name is None:
        own = isinstance(system, Energy) or exact
        name = "own" if own else "raw" if isinstance(system, Logits) else "norm"
    if name not in ("raw", "norm", "own"):
        raise unknown_name("energy", name, ("raw", "norm", "own"))
    if name == "raw":
        return LogitEnergy(system)
    if name == "norm":
        return PseudoLikelihoodEnergy(system)
    if exact and not isinstance(system, Energy):
        return LogProbEnergy(system)
    return SystemEnergy(system)


def _says_exact(system: Any) -> bool:
    objective = getattr(system, "objective", None)
    return getattr(objective, "kind", None) == "exact"


def _in_groups(batch: Batch, energies_of: Callable[[list[int]], Tensor]) -> Tensor:
    """(B,) energies, from those of some rows: no more tokens in a pass than the budget allows."""
    lengths = batch.lengths.tolist()
    found = torch.zeros(len(batch), dtype=torch.float64, device=batch.tokens.device)
    for group in group_by_length([batch.tokens.shape[1]] * len(lengths), TOKENS_PER_BATCH):
        found[group] = energies_of(group).double()
    return _checked(found)


def _checked(energies: Tensor) -> Tensor:
    if energies.isnan().any():
        raise UserError(
            "this model gives energies that are not numbers: its training has gone wrong, so train "
            "it again with a lower learning rate."
        )
    return energies
