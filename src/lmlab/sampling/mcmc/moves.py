"""MCMC proposal moves over texts: resample masked positions; insert or delete a token.

A move proposes a new text for each chain (one per row) with its forward and backward proposal
probabilities; an acceptance rule decides.
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
    """The state of C chains."""

    batch: Batch
    """One text per row: <s> x … </s>, right-padded."""
    fixed: Tensor | None = None
    """(C, T) bool: fixed tokens of a template; None if there are none."""
    special_token_count: int = 2
    """Special tokens around a text in its row: <s>, and </s> if there is one."""
    energies: Tensor | None = None
    """(C,) energies of the current texts, if the acceptance rule needs them."""

    @property
    def free(self) -> Tensor:
        """(C, T) bool: positions that are resampled."""
        place = torch.arange(self.batch.tokens.shape[1], device=self.batch.tokens.device)
        text = (place >= 1) & (place < (self.batch.lengths - self.special_token_count + 1)[:, None])
        return text if self.fixed is None else text & ~self.fixed

    @property
    def blanks(self) -> Tensor | None:
        """(C, T) bool: the free positions of a template; None without a template."""
        return None if self.fixed is None else self.free


class ProposalMove(Protocol):
    """A move that proposes a new text for each chain."""

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
    """Mask the positions of the scan order and resample each given the unmasked ones.

    The choice of positions does not depend on the tokens, so its probability cancels.
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
    """Insert or delete a token, with probability 1/2 each (reversible jump, Green 1995).

    From a text of L tokens: insert w ~ q(· | x around the new position) at one of L + 1 positions,
    or delete one of L tokens. The reverse of an insertion deletes one of L + 1 tokens, so the
    choices of position cancel; q(w | rest) remains, forward for an insertion, backward for a
    deletion. At the minimum and maximum length the impossible move is proposed as often and has no
    effect.
    """

    proposal: ProposalDistribution
    min_length: int
    max_length: int
    """Tokens of a text, special tokens not counted."""

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
        # Positions are 1-based; an insertion has one more.
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
        """Each row with a token inserted at its position (C,), the one there deleted, or unchanged.

        One pass serves all: a growing row is encoded with the new position masked, a shrinking row
        with the position to be deleted masked.
        """
        # Unchanged rows need any position that every text has.
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
    """Growing rows with an extra position, whose token is ignored."""
    wide = torch.nn.functional.pad(batch.tokens, (0, 1))
    place = torch.arange(wide.shape[1], device=wide.device)
    after = grows[:, None] & (place > places[:, None])
    source = (place - after.long()).clamp(min=0)
    return replace_tokens(batch, wide.gather(1, source), batch.lengths + grows.long())


def _closed(
    tokens: Tensor, lengths: Tensor, places: Tensor, shrinks: Tensor
) -> tuple[Tensor, Tensor]:
    """Shrinking rows without the token at their position, trimmed to the longest row."""
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
    """Sample the masked positions `hidden` (C, T) one by one in random order.

    Each is conditioned on those already sampled. Cost: one pass per masked position.
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
