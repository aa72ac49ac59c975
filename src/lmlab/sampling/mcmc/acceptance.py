"""MCMC acceptance rules: Gibbs accepts every proposal, Metropolis-Hastings corrects for it.

Metropolis-Hastings has the stationary distribution ∝ exp(-E / τ). Many chains step in parallel, one
per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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
        self, energies: Tensor, proposed: Tensor, forward: Tensor, *_: Any
    ) -> Tensor:
        return torch.zeros_like(forward)

    def accept(self, state: ChainState, proposed: ProposedTexts, **_: Any) -> TransitionResult:
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
        return replace(state, energies=self.target.energies(state.batch, state.blanks))

    def log_acceptance(
        self,
        energies: Tensor,
        proposed: Tensor,
        forward: Tensor,
        backward: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        """(…) log acceptance probability, from the energies of both texts and the log-probabilities
        of proposing each from the other.

        Between two texts of infinite energy every step is accepted: the chain searches for the
        support, and the ratio 0/0 is undefined.
        """
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
        assert state.energies is not None, "initialise(state) computes the energies"
        differs = texts_differ(state.batch, proposed.batch)
        energies = state.energies.clone()
        if differs.any():
            rows = differs.nonzero()[:, 0]
            blanks = None if state.blanks is None else state.blanks[rows]
            energies[differs] = self.target.energies(proposed.batch.select(rows), blanks)
        log_acceptance = self.log_acceptance(
            state.energies, energies, proposed.forward, proposed.backward, temperature
        )
        coins = torch.rand(len(differs), generator=generator, dtype=torch.float64)
        accepted = coins.to(log_acceptance.device).log() < log_acceptance
        after = replace(
            state,
            batch=_select_rows(accepted, proposed.batch, state.batch),
            energies=torch.where(accepted, energies, state.energies),
        )
        return TransitionResult(state=after, accepted=accepted, changed=accepted & differs)


AcceptanceRule = GibbsAcceptance | MetropolisHastings


def texts_differ(one: Batch, other: Batch) -> Tensor:
    """(C,) bool: rows whose texts differ."""
    width = min(one.tokens.shape[1], other.tokens.shape[1])
    # Beyond the narrower batch, rows of equal length hold only padding.
    differs = (one.tokens[:, :width] != other.tokens[:, :width]) & one.mask()[:, :width]
    return differs.any(1) | (one.lengths != other.lengths)


def _select_rows(use_one: Tensor, one: Batch, other: Batch) -> Batch:
    """Rows of `one` where `use_one` (C,) is true, of `other` elsewhere."""
    width = max(one.tokens.shape[1], other.tokens.shape[1])
    one_tokens, other_tokens = (
        torch.nn.functional.pad(batch.tokens, (0, width - batch.tokens.shape[1]))
        for batch in (one, other)
    )
    lengths = torch.where(use_one, one.lengths, other.lengths)
    tokens = torch.where(use_one[:, None], one_tokens, other_tokens)[:, : int(lengths.max())]
    return replace_tokens(other, tokens, lengths)
