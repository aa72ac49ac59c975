"""Steps of Markov chains over texts: what is proposed, and whether it is taken.

A step is a move and a decision. Moves: hide some places and draw them anew; put a token in or take
one out. Decisions: Gibbs takes everything; Metropolis corrects for what the proposal favours, so
that the chain visits texts as exp(-E / τ) says. Many chains step side by side, a row each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.sampling.chain_orders import Order
from lmlab.sampling.chain_proposals import Proposal, Proposed, refilled, with_tokens
from lmlab.sampling.chain_targets import Target


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainState:
    """Where C chains are."""

    batch: Batch
    """A text a row: <s> x … </s>, padded at its end."""
    fixed: Tensor | None = None
    """(C, T) bool: tokens of a template, which stay; None where none do."""
    around: int = 2
    """Symbols around a text in its row: <s>, and </s> where there is one."""
    energies: Tensor | None = None
    """(C,) of the present texts, where the decision needs them."""

    @property
    def free(self) -> Tensor:
        """(C, T) bool: places whose tokens move."""
        place = torch.arange(self.batch.tokens.shape[1], device=self.batch.tokens.device)
        text = (place >= 1) & (place < (self.batch.lengths - self.around + 1)[:, None])
        return text if self.fixed is None else text & ~self.fixed


@dataclass(frozen=True, kw_only=True, eq=False)
class Stepped:
    """Where the chains are after a step, and what became of each proposal."""

    state: ChainState
    accepted: Tensor
    """(C,) bool: whether the proposal was taken, be it the same text again."""
    changed: Tensor
    """(C,) bool: whether the text is another one now."""


# Moves ------------------------------------------------------------------------------------------


class Move(Protocol):
    """What proposes a new text to each chain."""

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Proposed: ...


@dataclass(frozen=True, kw_only=True)
class Refill:
    """Hide the places that an order names and draw each of them given all the rest.

    Which places these are does not depend on the tokens, so that its probability cancels.
    """

    proposal: Proposal
    order: Order

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Proposed:
        masked = self.order.places(state.free, step=step, generator=generator)
        return refilled(
            self.proposal, state.batch, masked, temperature=temperature, generator=generator
        )


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Put a token in or take one out, each in half of the cases (reversible jump, Green 1995).

    From a text of L tokens: a token w ~ q(· | x around a new place) at one of L + 1 places, or one
    of L tokens out. The way back from L + 1 takes out one of L + 1, so the choices of the place
    cancel, and what remains is q(w | rest), forward where it is put in, backward where it is taken
    out. At the least and the greatest length the other way is proposed to no effect, as often as
    elsewhere.
    """

    proposal: Proposal
    least: int
    most: int
    """Tokens of a text, the symbols around it not counted."""

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Proposed:
        batch, device = state.batch, state.batch.tokens.device
        tokens = batch.lengths - state.around
        coins = torch.rand(len(batch), 2, generator=generator, dtype=torch.float64).to(device)
        grows = coins[:, 0] < 0.5
        # Places are counted from 1; one more of them where a token is put in.
        chosen = 1 + (coins[:, 1] * (tokens + grows)).long().clamp(max=tokens + grows - 1)
        stays = torch.where(grows, tokens >= self.most, tokens <= self.least)
        return self.resized(
            batch, chosen, grows, stays, temperature=temperature, generator=generator
        )

    def resized(
        self,
        batch: Batch,
        places: Tensor,
        grows: Tensor,
        stays: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Proposed:
        """Each row with a token put in at its place (C,), its token there taken out, or as it is.

        One pass serves all: a row that grows is read with the new place hidden, a row that shrinks
        with the place hidden that is to go.
        """
        # Any place will do for a row that stays as it is, but one that every text has.
        places = places.masked_fill(stays, 1)
        opened = _opened(batch, places, grows & ~stays)
        place = torch.arange(opened.tokens.shape[1], device=places.device)
        masked = place == places[:, None]
        proposed = refilled(
            self.proposal, opened, masked, temperature=temperature, generator=generator
        )
        shrinks = ~grows & ~stays
        grown, zero = proposed.batch, torch.zeros_like(proposed.forward)
        kept = torch.where((grows & ~stays)[:, None], grown.tokens, opened.tokens)
        lengths = opened.lengths - shrinks.long()
        return Proposed(
            batch=with_tokens(batch, *_closed(kept, lengths, places, shrinks)),
            forward=torch.where(grows & ~stays, proposed.forward, zero),
            backward=torch.where(shrinks, proposed.backward, zero),
        )


def _opened(batch: Batch, places: Tensor, grows: Tensor) -> Batch:
    """Rows that grow with a place more; what stands at it is not looked at."""
    wide = torch.nn.functional.pad(batch.tokens, (0, 1))
    place = torch.arange(wide.shape[1], device=wide.device)
    after = grows[:, None] & (place > places[:, None])
    source = (place - after.long()).clamp(min=0)
    return with_tokens(batch, wide.gather(1, source), batch.lengths + grows.long())


def _closed(
    tokens: Tensor, lengths: Tensor, places: Tensor, shrinks: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that shrink without the token at their place, cut to the longest."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    after = shrinks[:, None] & (place >= places[:, None])
    source = (place + after.long()).clamp(max=tokens.shape[1] - 1)
    return tokens.gather(1, source)[:, : int(lengths.max())], lengths


# Decisions --------------------------------------------------------------------------------------


class Kernel(Protocol):
    """What decides whether a proposal is taken."""

    @property
    def name(self) -> str:
        """gibbs or metropolis."""
        ...

    def begin(self, state: ChainState) -> ChainState:
        """The state with what the decisions need of it."""
        ...

    def log_chance(
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

    def decide(
        self,
        state: ChainState,
        proposed: Proposed,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Stepped: ...


@dataclass(frozen=True)
class Gibbs:
    """Every proposal is taken (Geman and Geman 1984; Wang and Cho 2019 for masked models).

    If one place is drawn at a time and the conditionals are those of one distribution, that is the
    chain's law. A masked model's conditionals are not, so its law is one that nobody wrote down.
    """

    name: str = "gibbs"

    def begin(self, state: ChainState) -> ChainState:
        return state

    def log_chance(
        self,
        energies: Tensor,
        proposed: Tensor,
        forward: Tensor,
        backward: Tensor,
        temperature: float = 1.0,
    ) -> Tensor:
        return torch.zeros_like(forward)

    def decide(
        self,
        state: ChainState,
        proposed: Proposed,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Stepped:
        changed = differ(state.batch, proposed.batch)
        after = replace(state, batch=proposed.batch)
        return Stepped(state=after, accepted=torch.ones_like(changed), changed=changed)


@dataclass(frozen=True)
class Metropolis:
    """Taken with probability min(1, exp((E(x) - E(x')) / τ) q(x | x') / q(x' | x)).

    Metropolis et al. 1953, Hastings 1970; for masked models Goyal et al. 2022. Its law is
    exp(-E(x) / τ) / Z, whatever the proposal, as long as that reaches every text. Cost: the energy
    of the texts that were proposed and are others than the present ones.
    """

    target: Target
    name: str = "metropolis"

    def begin(self, state: ChainState) -> ChainState:
        energies = self.target.energies(state.batch)
        return replace(state, energies=energies)

    def log_chance(
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

    def decide(
        self,
        state: ChainState,
        proposed: Proposed,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Stepped:
        assert state.energies is not None, "begin(state) gives the energies"
        other = differ(state.batch, proposed.batch)
        energies = state.energies.clone()
        if other.any():
            energies[other] = self.target.energies(proposed.batch.select(other.nonzero()[:, 0]))
        log_chance = self.log_chance(
            state.energies, energies, proposed.forward, proposed.backward, temperature
        )
        coins = torch.rand(len(other), generator=generator, dtype=torch.float64)
        accepted = coins.to(log_chance.device).log() < log_chance
        after = replace(
            state,
            batch=_chosen(accepted, proposed.batch, state.batch),
            energies=torch.where(accepted, energies, state.energies),
        )
        return Stepped(state=after, accepted=accepted, changed=accepted & other)


def differ(one: Batch, other: Batch) -> Tensor:
    """(C,) bool: which rows hold another text."""
    width = min(one.tokens.shape[1], other.tokens.shape[1])
    # Rows of one length agree on all that lies behind the narrower batch: it is padding.
    unlike = (one.tokens[:, :width] != other.tokens[:, :width]) & one.mask()[:, :width]
    return unlike.any(1) | (one.lengths != other.lengths)


def _chosen(first: Tensor, one: Batch, other: Batch) -> Batch:
    """Rows of `one` where `first` (C,) is true, and of `other` elsewhere."""
    width = max(one.tokens.shape[1], other.tokens.shape[1])
    tokens = [
        torch.nn.functional.pad(each.tokens, (0, width - each.tokens.shape[1]))
        for each in (one, other)
    ]
    lengths = torch.where(first, one.lengths, other.lengths)
    chosen = torch.where(first[:, None], *tokens)[:, : int(lengths.max())]
    return with_tokens(other, chosen, lengths)


def drawn_one_by_one(
    proposal: Proposal,
    state: ChainState,
    hidden: Tensor,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> ChainState:
    """The texts with the places of `hidden` (C, T) filled in, in a random order, the rest unknown.

    Each is drawn given what stands there already. Cost: a pass for each hidden place.
    """
    batch, hidden = state.batch, hidden.clone()
    while hidden.any():
        ranks = torch.rand(hidden.shape, generator=generator).to(hidden.device)
        now = ranks.masked_fill(~hidden, -1.0).argmax(1)
        place = torch.arange(hidden.shape[1], device=hidden.device)
        one = (place == now[:, None]) & hidden
        some = refilled(proposal, batch, hidden, temperature=temperature, generator=generator)
        batch = with_tokens(batch, torch.where(one, some.batch.tokens, batch.tokens))
        hidden &= ~one
    return replace(state, batch=batch)
