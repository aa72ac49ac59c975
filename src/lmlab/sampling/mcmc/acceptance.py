"""MCMC acceptance rules: Gibbs accepts every proposal, Metropolis-Hastings corrects for it.

Metropolis-Hastings has the stationary distribution ∝ exp(-E / τ). Many chains step in parallel, one
per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.sampling.mcmc.energy import EnergyFunction
from lmlab.sampling.mcmc.moves import ChainState
from lmlab.sampling.mcmc.proposals import ProposedTexts, replace_tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionResult:
    """The chains after a step, and which proposals were accepted."""

    state: ChainState
    accepted: Tensor
    """(C,) bool: whether the proposal was accepted, even if it is the same text."""
    changed: Tensor
    """(C,) bool: whether the text changed."""


class AcceptanceRule(Protocol):
    """Acceptance rule for proposals."""

    @property
    def name(self) -> str:
        """gibbs or metropolis."""
        ...

    def initialise(self, state: ChainState) -> ChainState:
        """The state with what the rule needs (energies)."""
        ...

    def log_acceptance(
        self,
        energies: Tensor,
        proposed: Tensor,
        forward: Tensor,
        backward: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        """(…) log acceptance probability, from the energies of both texts and the log-probabilities
        of proposing each from the other."""
        ...

    def accept(
        self,
        state: ChainState,
        proposed: ProposedTexts,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> TransitionResult: ...


@dataclass(frozen=True)
class GibbsAcceptance:
    """Gibbs sampling: accept every proposal (Geman and Geman 1984; Wang and Cho 2019 for BERT).

    If one position is sampled at a time and the conditionals belong to one joint distribution, that
    is the stationary one. A masked model's do not, so no closed form of it is known.
    """

    name: str = "gibbs"

    def initialise(self, state: ChainState) -> ChainState:
        return state

    def log_acceptance(
        self,
        energies: Tensor,
        proposed: Tensor,
        forward: Tensor,
        backward: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        return torch.zeros_like(forward)

    def accept(
        self,
        state: ChainState,
        proposed: ProposedTexts,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> TransitionResult:
        changed = texts_differ(state.batch, proposed.batch)
        after = replace(state, batch=proposed.batch)
        return TransitionResult(state=after, accepted=torch.ones_like(changed), changed=changed)


@dataclass(frozen=True)
class MetropolisHastings:
    """Metropolis-Hastings: accept with min(1, exp((E(x) - E(x')) / τ) q(x | x') / q(x' | x)).

    Metropolis et al. 1953, Hastings 1970; for masked models Goyal et al. 2022. The stationary
    distribution is exp(-E(x) / τ) / Z for any proposal that reaches every text. Cost: the energy of
    each proposed text that differs from the current one.
    """

    target: EnergyFunction
    name: str = "metropolis"

    def initialise(self, state: ChainState) -> ChainState:
        energies = self.target.energies(state.batch, state.blanks)
        return replace(state, energies=energies)

    def log_acceptance(
        self,
        energies: Tensor,
        proposed: Tensor,
        forward: Tensor,
        backward: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        """Between two texts of infinite energy every step is accepted: the chain searches for the
        support, and the ratio 0/0 is undefined."""
        ratio = (energies - proposed) / temperature + backward - forward
        return ratio.nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf).clamp(max=0.0)

    def accept(
        self,
        state: ChainState,
        proposed: ProposedTexts,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> TransitionResult:
        assert state.energies is not None, "begin(state) gives the energies"
        other = texts_differ(state.batch, proposed.batch)
        energies = state.energies.clone()
        if other.any():
            rows = other.nonzero()[:, 0]
            blanks = None if state.blanks is None else state.blanks[rows]
            energies[other] = self.target.energies(proposed.batch.select(rows), blanks)
        log_chance = self.log_acceptance(
            state.energies, energies, proposed.forward, proposed.backward, temperature
        )
        coins = torch.rand(len(other), generator=generator, dtype=torch.float64)
        accepted = coins.to(log_chance.device).log() < log_chance
        after = replace(
            state,
            batch=_chosen(accepted, proposed.batch, state.batch),
            energies=torch.where(accepted, energies, state.energies),
        )
        return TransitionResult(state=after, accepted=accepted, changed=accepted & other)


def texts_differ(one: Batch, other: Batch) -> Tensor:
    """(C,) bool: rows whose texts differ."""
    width = min(one.tokens.shape[1], other.tokens.shape[1])
    # Beyond the narrower batch, rows of equal length hold only padding.
    unlike = (one.tokens[:, :width] != other.tokens[:, :width]) & one.mask()[:, :width]
    return unlike.any(1) | (one.lengths != other.lengths)


def _chosen(first: Tensor, one: Batch, other: Batch) -> Batch:
    """Rows of `one` where `first` (C,) is true, of `other` elsewhere."""
    width = max(one.tokens.shape[1], other.tokens.shape[1])
    mine, theirs = (
        torch.nn.functional.pad(each.tokens, (0, width - each.tokens.shape[1]))
        for each in (one, other)
    )
    lengths = torch.where(first, one.lengths, other.lengths)
    chosen = torch.where(first[:, None], mine, theirs)[:, : int(lengths.max())]
    return replace_tokens(other, chosen, lengths)
