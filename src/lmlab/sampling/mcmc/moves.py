"""MCMC proposal moves over texts: resample masked positions; insert or delete a token.

A move proposes a new text for each chain (one per row) with its forward and backward proposal
probabilities; an acceptance rule decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

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
        positions = torch.arange(self.batch.tokens.shape[1], device=self.batch.tokens.device)
        text = (positions >= 1) & (
            positions < (self.batch.lengths - self.special_token_count + 1)[:, None]
        )
        return text if self.fixed is None else text & ~self.fixed

    @property
    def blanks(self) -> Tensor | None:
        """(C, T) bool: the free positions of a template; None without a template."""
        return None if self.fixed is None else self.free


@dataclass(frozen=True, kw_only=True)
class ProposalMove(ABC):
    """A move that proposes a new text for each chain, by masking positions and resampling them."""

    proposal: ProposalDistribution

    def propose(
        self,
        state: ChainState,
        *,
        step: int,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> ProposedTexts:
        batch, masked, complete = self._mask(state, step, generator)
        proposed = resample_positions(
            self.proposal, batch, masked, temperature=temperature, generator=generator
        )
        return complete(proposed)

    @abstractmethod
    def _mask(
        self, state: ChainState, step: int, generator: torch.Generator | None
    ) -> tuple[Batch, Tensor, Callable[[ProposedTexts], ProposedTexts]]:
        """The batch to resample, its masked positions (C, T), and what completes the proposal."""


@dataclass(frozen=True, kw_only=True)
class ResampleMove(ProposalMove):
    """Mask the positions of the scan order and resample each given the unmasked ones.

    The choice of positions does not depend on the tokens, so its probability cancels.
    """

    order: ScanOrder

    def _mask(
        self, state: ChainState, step: int, generator: torch.Generator | None
    ) -> tuple[Batch, Tensor, Callable[[ProposedTexts], ProposedTexts]]:
        masked = self.order.positions(state.free, step=step, generator=generator)
        return state.batch, masked, lambda proposed: proposed


@dataclass(frozen=True, kw_only=True)
class InsertDeleteMove(ProposalMove):
    """Insert or delete a token, with probability 1/2 each (reversible jump, Green 1995).

    From a text of L tokens: insert w ~ q(· | x around the new position) at one of L + 1 positions,
    or delete one of L tokens. The reverse of an insertion deletes one of L + 1 tokens, so the
    choices of position cancel; q(w | rest) remains, forward for an insertion, backward for a
    deletion. At the minimum and maximum length the impossible move is proposed as often and has no
    effect. One pass serves all: a growing row is encoded with the new position masked, a shrinking
    row with the position to be deleted masked.
    """

    min_length: int
    max_length: int
    """Tokens of a text, special tokens not counted."""

    def _mask(
        self, state: ChainState, step: int, generator: torch.Generator | None
    ) -> tuple[Batch, Tensor, Callable[[ProposedTexts], ProposedTexts]]:
        batch, device = state.batch, state.batch.tokens.device
        tokens = batch.lengths - state.special_token_count
        coins = torch.rand(len(batch), 2, generator=generator, dtype=torch.float64).to(device)
        inserts = coins[:, 0] < 0.5
        # Positions are 1-based; an insertion has one more.
        positions = 1 + (coins[:, 1] * (tokens + inserts)).long().clamp(max=tokens + inserts - 1)
        stays = torch.where(inserts, tokens >= self.max_length, tokens <= self.min_length)
        # Unchanged rows need any position that every text has.
        positions = positions.masked_fill(stays, 1)
        grows, shrinks = inserts & ~stays, ~inserts & ~stays
        opened = _open_positions(batch, positions, grows)
        columns = torch.arange(opened.tokens.shape[1], device=device)

        def complete(proposed: ProposedTexts) -> ProposedTexts:
            zero = torch.zeros_like(proposed.forward)
            resized = torch.where(grows[:, None], proposed.batch.tokens, opened.tokens)
            lengths = opened.lengths - shrinks.long()
            return ProposedTexts(
                batch=replace_tokens(
                    batch, *_close_positions(resized, lengths, positions, shrinks)
                ),
                forward=torch.where(grows, proposed.forward, zero),
                backward=torch.where(shrinks, proposed.backward, zero),
            )

        return opened, columns == positions[:, None], complete


def _open_positions(batch: Batch, positions: Tensor, grows: Tensor) -> Batch:
    """Growing rows with an extra position, whose token is ignored."""
    wide = torch.nn.functional.pad(batch.tokens, (0, 1))
    columns = torch.arange(wide.shape[1], device=wide.device)
    after = grows[:, None] & (columns > positions[:, None])
    source = (columns - after.long()).clamp(min=0)
    return replace_tokens(batch, wide.gather(1, source), batch.lengths + grows.long())


def _close_positions(
    tokens: Tensor, lengths: Tensor, positions: Tensor, shrinks: Tensor
) -> tuple[Tensor, Tensor]:
    """Shrinking rows without the token at their position, trimmed to the longest row."""
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    after = shrinks[:, None] & (columns >= positions[:, None])
    source = (columns + after.long()).clamp(max=tokens.shape[1] - 1)
    return tokens.gather(1, source)[:, : int(lengths.max())], lengths


def sample_sequentially(
    proposal: ProposalDistribution,
    state: ChainState,
    masked: Tensor,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> ChainState:
    """Sample the masked positions `masked` (C, T) one by one in random order.

    Each is conditioned on those already sampled. Cost: one pass per masked position.
    """
    batch, masked = state.batch, masked.clone()
    while masked.any():
        ranks = torch.rand(masked.shape, generator=generator).to(masked.device)
        chosen = ranks.masked_fill(~masked, -1.0).argmax(1)
        columns = torch.arange(masked.shape[1], device=masked.device)
        sampled_now = (columns == chosen[:, None]) & masked
        proposed = resample_positions(
            proposal, batch, masked, temperature=temperature, generator=generator
        )
        batch = replace_tokens(batch, torch.where(sampled_now, proposed.batch.tokens, batch.tokens))
        masked &= ~sampled_now
    return replace(state, batch=batch)
