"""Energy functions of texts for MCMC: pseudo-likelihood, raw logits, a model's own, -log p(x).

The target distribution is π(x) ∝ exp(-E(x) / τ). A masked model defines no joint distribution by
itself; two energies derive one from its conditionals (Goyal et al. 2022), others use a system's own
energy or exact log-probability.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import Energy, Fill, Logits, LogProb, LogProbs, require
from lmlab.core.system_protocols import SystemInfo
from lmlab.data.batches import group_by_length
from lmlab.scoring.pseudo_log_likelihood import masked_token_scores

TOKENS_PER_BATCH = 8192
"""Tokens per forward pass."""


class EnergyFunction(Protocol):
    """The energy of texts."""

    @property
    def name(self) -> str:
        """Name of the setting: raw, norm or own."""
        ...

    @property
    def formula(self) -> str:
        """The formula of E(x), for display."""
        ...

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B,) E of each text in nats, float64; infinite for impossible texts.

        `blanks` (B, T) bool: the free positions of a template, for energies that treat template and
        blanks differently; None without a template.
        """
        ...


@dataclass(frozen=True)
class PseudoLikelihoodEnergy:
    """Pseudo-likelihood energy E(x) = -Σ_t log p(x_t | x without x_t).

    Goyal et al. 2022, E_norm; Salazar et al. 2020. Cost: one pass per token.
    """

    system: SystemInfo = field(repr=False)
    name: str = "norm"
    formula: str = "-Σ_t log p(x_t | x without x_t)"

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        scores = masked_token_scores(self.system, batch, method=self.name)
        return _checked(-scores.double().sum(1))


@dataclass(frozen=True)
class LogitEnergy(PseudoLikelihoodEnergy):
    """Raw logit energy E(x) = -Σ_t logit(x_t | x without x_t) of a masked model.

    Goyal et al. 2022, E_raw. The end token is not summed. Cost: one pass per token.
    """

    name: str = "raw"
    formula: str = "-Σ_t logit(x_t | x without x_t)"


@dataclass(frozen=True)
class SystemEnergy:
    """The system's own energy E(x), or E(x, blanks) under a template.

    All texts of a chain share the template's tokens, but a pooling that excludes them or masks
    their attention to the blanks changes the distribution. Cost: one pass.
    """

    system: Energy = field(repr=False)
    name: str = "own"
    formula: str = "the system's own energy"

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        if blanks is None:
            return _in_groups(batch, lambda rows: self.system.energy(batch.select(rows)))
        return _in_groups(
            batch, lambda rows: self.system.energy(batch.select(rows), blanks=blanks[rows])
        )


@dataclass(frozen=True)
class LogProbEnergy:
    """Negative log-likelihood E(x) = -log p(x) of a system with exact log-probability; one pass.

    The target is the system's own distribution, restricted to texts of a given length.
    """

    system: LogProb = field(repr=False)
    name: str = "own"
    formula: str = "-log p(x)"

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        return _in_groups(batch, lambda rows: -self._exact_log_probs(batch.select(rows)).totals)

    def _exact_log_probs(self, batch: Batch) -> LogProbs:
        log_probs = self.system.log_prob(batch)
        if log_probs.kind != "exact":
            raise UserError(
                f"the log-probability of this system is of the kind {log_probs.kind}, which is no "
                "distribution over texts; use the energy raw or norm."
            )
        return log_probs


@dataclass(frozen=True, kw_only=True)
class LengthPenalisedEnergy:
    """Length-penalised energy E(x) + cost · |x|, for chains that change the length.

    Under π(x) ∝ exp(-E(x) / τ) over texts of all lengths, length L has probability ∝ Z_L, the sum
    of exp(-E(x) / τ) over its texts. A cost per token makes that exp(-cost L / τ) Z_L.
    """

    target: EnergyFunction
    cost: float = 0.0
    special_token_count: int = 2
    """Special tokens around a text in its row: <s>, and </s> if there is one."""

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def formula(self) -> str:
        return f"{self.target.formula} + {self.cost:g} |x|" if self.cost else self.target.formula

    def energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        energies = self.target.energies(batch, blanks)
        return energies + self.cost * (batch.lengths - self.special_token_count).to(energies)


def make_energy(system: SystemInfo, name: str | None = None) -> EnergyFunction:
    """The energy of that name, or the system's default.

    The default is own for energy models and for those that score left to right, whose
    log-probability must be exact; else raw, else norm.
    """
    if name is None:
        has_own_energy = system.scorer_kind in ("energy", "left-to-right")
        name = "own" if has_own_energy else "raw" if isinstance(system, Logits) else "norm"
    if name not in ("raw", "norm", "own"):
        raise unknown_name("energy", name, ("raw", "norm", "own"))
    if name == "raw":
        require(system, Logits, "the raw energy")
        return LogitEnergy(system)
    if name == "norm":
        require(system, Fill, "the normalised energy")
        return PseudoLikelihoodEnergy(system)
    if system.scorer_kind == "left-to-right":
        return LogProbEnergy(require(system, LogProb, "minus the log-probability as an energy"))
    return SystemEnergy(require(system, Energy, "its own energy"))


def _in_groups(batch: Batch, energies_of: Callable[[list[int]], Tensor]) -> Tensor:
    """(B,) energies computed in groups of rows within the token budget."""
    lengths = batch.lengths.tolist()
    energies = torch.zeros(len(batch), dtype=torch.float64, device=batch.tokens.device)
    for group in group_by_length([batch.tokens.shape[1]] * len(lengths), TOKENS_PER_BATCH):
        energies[group] = energies_of(group).double()
    return _checked(energies)


def _checked(energies: Tensor) -> Tensor:
    if energies.isnan().any():
        raise UserError(
            "this model gives energies that are NaN: its training diverged; train it again "
            "with a lower learning rate."
        )
    return energies
