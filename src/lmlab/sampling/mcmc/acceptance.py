"""Decisions of Markov chains over texts: whether what a move proposes is taken.

Gibbs takes everything; Metropolis corrects for what the proposal favours, so that the chain visits
texts as exp(-E / τ) says. Many chains step side by side, a row each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.sampling.mcmc.energy import EnergyFunction
from lmlab.sampling.mcmc.moves import ChainState
from lmlab.sampling.mcmc.proposals import (
    ProposedTexts,
    replace_tokens,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionResult:
    """Where the chains are after a step, and what became of each proposal."""

    state: ChainState
    accepted: Tensor
    """(C,) bool: whether the proposal was taken, be it the same text again."""
    changed: Tensor
    """(C,) bool: whether the text is another one now."""


class AcceptanceRule(Protocol):
    """What decides whether a proposal is taken."""

    @property
    def name(self) -> str:
        """gibbs or metropolis."""
        ...

    def initialise(self, state: ChainState) -> ChainState:
        """The state with what the decisions need of it."""
        ...

    def log_acceptance(
        self,
        energies: Tensor,
        proposed: Tensor,
        forward: Tensor,
        backward: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        """(…) log-probability of taking a proposal, from the energies of both texts and of how
        likely each was to be proposed from the other."""
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
    """Every proposal is taken (Geman and Geman 1984; Wang and Cho 2019 for masked models).

    If one place is drawn at a time and the conditionals are those of one distribution, that is the
    chain's law. A masked model's conditionals are not, so its law is one that nobody wrote down.
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
    """Taken with probability min(1, exp((E(x) - E(x')) / τ) q(x | x') / q(x' | x)).

    Metropolis et al. 1953, Hastings 1970; for masked models Goyal et al. 2022. Its law is
    exp(-E(x) / τ) / Z, whatever the proposal, as long as that reaches every text. Cost: the energy
    of the texts that were proposed and are others than the present ones.
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
        """From one text of infinite energy to another every step is taken: the chain is looking
        for the law's support, and there is no ratio of two zeros."""
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
    """(C,) bool: which rows hold another text."""
    width = min(one.tokens.shape[1], other.tokens.shape[1])
    # Rows of one length agree on all that lies behind the narrower batch: it is padding.
    unlike = (one.tokens[:, :width] != other.tokens[:, :width]) & one.mask()[:, :width]
    return unlike.any(1) | (one.lengths != other.lengths)


def _chosen(first: Tensor, one: Batch, other: Batch) -> Batch:
    """Rows of `one` where `first` (C,) is true, and of `other` elsewhere."""
    width = max(one.tokens.shape[1], other.tokens.shape[1])
    mine, theirs = (
        torch.nn.functional.pad(each.tokens, (0, width - each.tokens.shape[1]))
        for each in (one, other)
    )
    lengths = torch.where(first, one.lengths, other.lengths)
    chosen = torch.where(first[:, None], mine, theirs)[:, : int(lengths.max())]
    return replace_tokens(other, chosen, lengths)
