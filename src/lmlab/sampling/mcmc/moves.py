"""Moves of Markov chains over texts: hide some places and draw them anew; put a token in or out.

A move proposes a new text to each of many chains, a row each, and says how likely it was to propose
it and to propose the way back; a kernel decides whether it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.sampling.mcmc.proposals import (
    ProposalDistribution,
    ProposedTexts,
    replace_tokens,
    resample_positions,
)
from lmlab.sampling.mcmc.schedule import ScanOrder


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainState:
    """Where C chains are."""

    batch: Batch
    """A text a row: <s> x … </s>, padded at its end."""
    fixed: Tensor | None = None
    """(C, T) bool: tokens of a template, which stay; None where none do."""
    special_token_count: int = 2
    """Symbols around a text in its row: <s>, and </s> where there is one."""
    energies: Tensor | None = None
    """(C,) of the present texts, where the decision needs them."""

    @property
    def free(self) -> Tensor:
        """(C, T) bool: places whose tokens move."""
        place = torch.arange(self.batch.tokens.shape[1], device=self.batch.tokens.device)
        text = (place >= 1) & (place < (self.batch.lengths - self.special_token_count + 1)[:, None])
        return text if self.fixed is None else text & ~self.fixed

    @property
    def blanks(self) -> Tensor | None:
        """(C, T) bool: the places that a template leaves free; None where there is no template."""
        return None if self.fixed is None else self.free


class ProposalMove(Protocol):
    """What proposes a new text to each chain."""

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> ProposedTexts: ...


@dataclass(frozen=True, kw_only=True)
class ResampleMove:
    """Hide the places that an order names and draw each of them given all the rest.

    Which places these are does not depend on the tokens, so that its probability cancels.
    """

    proposal: ProposalDistribution
    order: ScanOrder

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> ProposedTexts:
        masked = self.order.positions(state.free, step=step, generator=generator)
        return resample_positions(
            self.proposal, state.batch, masked, temperature=temperature, generator=generator
        )


@dataclass(frozen=True, kw_only=True)
class InsertDeleteMove:
    """Put a token in or take one out, each in half of the cases (reversible jump, Green 1995).

    From a text of L tokens: a token w ~ q(· | x around a new place) at one of L + 1 places, or one
    of L tokens out. The way back from L + 1 takes out one of L + 1, so the choices of the place
    cancel, and what remains is q(w | rest), forward where it is put in, backward where it is taken
    out. At the least and the greatest length the other way is proposed to no effect, as often as
    elsewhere.
    """

    proposal: ProposalDistribution
    min_length: int
    max_length: int
    """Tokens of a text, the symbols around it not counted."""

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> ProposedTexts:
        batch, device = state.batch, state.batch.tokens.device
        tokens = batch.lengths - state.special_token_count
        coins = torch.rand(len(batch), 2, generator=generator, dtype=torch.float64).to(device)
        grows = coins[:, 0] < 0.5
        # Places are counted from 1; one more of them where a token is put in.
        chosen = 1 + (coins[:, 1] * (tokens + grows)).long().clamp(max=tokens + grows - 1)
        stays = torch.where(grows, tokens >= self.max_length, tokens <= self.min_length)
        return self.propose_resized(
            batch, chosen, grows, stays, temperature=temperature, generator=generator
        )

    def propose_resized(
        self,
        batch: Batch,
        places: Tensor,
        grows: Tensor,
        stays: Tensor,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> ProposedTexts:
        """Each row with a token put in at its place (C,), its token there taken out, or as it is.

        One pass serves all: a row that grows is read with the new place hidden, a row that shrinks
        with the place hidden that is to go.
        """
        # Any place will do for a row that stays as it is, but one that every text has.
        places = places.masked_fill(stays, 1)
        opened = _opened(batch, places, grows & ~stays)
        place = torch.arange(opened.tokens.shape[1], device=places.device)
        masked = place == places[:, None]
        proposed = resample_positions(
            self.proposal, opened, masked, temperature=temperature, generator=generator
        )
        shrinks = ~grows & ~stays
        grown, zero = proposed.batch, torch.zeros_like(proposed.forward)
        kept = torch.where((grows & ~stays)[:, None], grown.tokens, opened.tokens)
        lengths = opened.lengths - shrinks.long()
        return ProposedTexts(
            batch=replace_tokens(batch, *_closed(kept, lengths, places, shrinks)),
            forward=torch.where(grows & ~stays, proposed.forward, zero),
            backward=torch.where(shrinks, proposed.backward, zero),
        )


def _opened(batch: Batch, places: Tensor, grows: Tensor) -> Batch:
    """Rows that grow with a place more; what stands at it is not looked at."""
    wide = torch.nn.functional.pad(batch.tokens, (0, 1))
    place = torch.arange(wide.shape[1], device=wide.device)
    after = grows[:, None] & (place > places[:, None])
    source = (place - after.long()).clamp(min=0)
    return replace_tokens(batch, wide.gather(1, source), batch.lengths + grows.long())


def _closed(
    tokens: Tensor, lengths: Tensor, places: Tensor, shrinks: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that shrink without the token at their place, cut to the longest."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    after = shrinks[:, None] & (place >= places[:, None])
    source = (place + after.long()).clamp(max=tokens.shape[1] - 1)
    return tokens.gather(1, source)[:, : int(lengths.max())], lengths


def sample_sequentially(
    proposal: ProposalDistribution,
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
        some = resample_positions(
            proposal, batch, hidden, temperature=temperature, generator=generator
        )
        batch = replace_tokens(batch, torch.where(one, some.batch.tokens, batch.tokens))
        hidden &= ~one
    return replace(state, batch=batch)
