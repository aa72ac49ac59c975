"""HMM parameters: start, transition and block-sparse emission, as free tables or from embeddings.

Free tables, which EM can set, or tables computed from state and word embeddings, which share
statistical strength (Chiu and Rush 2020, Scaling Hidden Markov Language Models).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.feed_forward import ResidualMLP

ZIPF_SHIFT = 2.7
"""Mandelbrot's shift in p(rank) ∝ 1 / (rank + shift)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HMMTables:
    """Log-probabilities of one hidden Markov model whose K states form C blocks."""

    start: Tensor
    """(K,) initial distribution."""
    transition: Tensor
    """(K, K) from row to column."""
    emission: Tensor
    """(V, K / C) of each token given each state of its own block; -inf at impossible tokens."""
    block: Tensor
    """(V,) the block of each token."""
    kept_states: Tensor | None = None
    """(K,) the model's states that these are, if state dropout removed some."""

    @property
    def states_per_block(self) -> int:
        """Number of states per block."""
        return self.emission.shape[1]

    def dense_emission(self) -> Tensor:
        """(V, K) the emission over all states, -inf outside of a token's block."""
        rows, count = len(self.block), len(self.start) // self.states_per_block
        dense = self.emission.new_full((rows, count, self.states_per_block), -torch.inf)
        token_ids = torch.arange(rows, device=self.block.device)
        return dense.index_put((token_ids, self.block), self.emission).flatten(1)


def blocks_by_rank(vocabulary: Vocabulary, count: int) -> Tensor:
    """(V,) a block for each token, of about equal mass under Zipf's law.

    Ids of a word vocabulary are sorted by frequency, so consecutive ids share a block: frequent
    words have many states each, rare words share theirs. Chiu and Rush use Brown clusters, which
    need the training text; `HMMParameters.set_blocks` takes any other assignment.
    """
    tokens = [i for i in range(vocabulary.size) if i not in vocabulary.unpredictable]
    if len(tokens) < count:
        raise UserError(
            f"blocks must be at most the {len(tokens)} tokens of this vocabulary, got {count}; "
            "use a smaller --set blocks=…"
        )
    masses = [1 / (rank + ZIPF_SHIFT) for rank in range(1, len(tokens) + 1)]
    block = torch.zeros(vocabulary.size, dtype=torch.long)
    current, remaining, filled = 0, sum(masses), 0.0
    for index, (token, mass) in enumerate(zip(tokens, masses, strict=True)):
        block[token] = current
        filled += mass
        later, waiting = count - current - 1, len(tokens) - index - 1
        # Full when it has its share of the rest, or when each later block needs a token.
        if later and (filled >= remaining / (later + 1) or waiting == later):
            current, remaining, filled = current + 1, remaining - filled, 0.0
    return block


class HMMParameters(nn.Module, ABC):
    """Parameters shared by a forward filter and an emission; `tables()` computes the tables."""

    block: Tensor
    never_predicted: Tensor

    def __init__(
        self, states: int, vocabulary: Vocabulary, *, blocks: int = 1, state_dropout: float = 0.0
    ) -> None:
        super().__init__()
        if states % blocks:
            raise UserError(
                f"states must be a multiple of blocks, got {states} states and {blocks} blocks; "
                "change --set states=…"
            )
        self.states, self.blocks, self.inside = states, blocks, states // blocks
        self.dropped = int(self.inside * state_dropout)
        self.register_buffer("block", blocks_by_rank(vocabulary, blocks))
        never = torch.zeros(vocabulary.size, dtype=torch.bool)
        never[list(vocabulary.unpredictable)] = True
        self.register_buffer("never_predicted", never, persistent=False)
        self._shared: HMMTables | None = None
        self._remembered: tuple[tuple[int, ...], HMMTables] | None = None

    @abstractmethod
    def compute(self, subset: Tensor | None) -> HMMTables:
        """The tables of all states, or of the kept ones, (C, k) ids."""

    def tables(self) -> HMMTables:
        """The current tables; cached in evaluation until something changes."""
        if self._shared is not None:
            return self._shared
        if self.training or torch.is_grad_enabled():
            self._remembered = None
            return self.compute(
                self._sample_kept_states() if self.training and self.dropped else None
            )
        numbers = (*self.parameters(), *self.buffers())
        key = tuple(n for x in numbers for n in (x.data_ptr(), x._version))
        if self._remembered is None or self._remembered[0] != key:
            self._remembered = (key, self.compute(None))
        return self._remembered[1]

    def train(self, mode: bool = True) -> Self:
        # A fused optimiser changes weights without increasing their version.
        self._remembered = None
        return super().train(mode)

    @contextmanager
    def shared(self, tables: HMMTables | None = None) -> Iterator[HMMTables]:
        """Context in which all callers share one computation of the tables and one dropout mask.

        `tables`, if given, replace the module's own.
        """
        previous = self._shared
        self._shared = self.tables() if tables is None else tables
        try:
            yield self._shared
        finally:
            self._shared = previous

    def set_blocks(self, block: Tensor) -> None:
        """Assign the tokens (V,) to other blocks, before training; each needs a token."""
        assert block.shape == self.block.shape
        present = torch.unique(block[~self.never_predicted])
        assert torch.equal(present, torch.arange(self.blocks)), "every block needs a token"
        self.block.copy_(block)

    def _sample_kept_states(self) -> Tensor:
        """State dropout: keep the same number of states in each block, for a whole batch."""
        order = torch.rand(self.blocks, self.inside, device=self.block.device).argsort(1)
        chosen = order[:, : self.inside - self.dropped].sort(1).values
        return chosen + self.inside * torch.arange(self.blocks, device=chosen.device)[:, None]


class TabularHMMParameters(HMMParameters):
    """Tabular parameters: K + K² + K V / C free numbers."""

    def __init__(self, states: int, vocabulary: Vocabulary, *, blocks: int = 1) -> None:
        super().__init__(states, vocabulary, blocks=blocks)
        # Random initialisation breaks the symmetry of the states.
        self.start = nn.Parameter(torch.randn(states) * 0.5)
        self.transition = nn.Parameter(torch.randn(states, states) * 0.5)
        self.emission = nn.Parameter(torch.randn(vocabulary.size, self.inside) * 0.5)

    def compute(self, subset: Tensor | None) -> HMMTables:
        assert subset is None, "free tables drop no states"
        scores = self.emission.masked_fill(self.never_predicted[:, None], -torch.inf)
        return HMMTables(
            start=torch.log_softmax(self.start, 0),
            transition=torch.log_softmax(self.transition, 1),
            emission=scores - _block_totals(scores, self.block, self.blocks)[self.block],
            block=self.block,
        )

    @torch.no_grad()
    def set_from_counts(self, counts: dict[str, Tensor], *, floor: float = 1e-6) -> None:
        """M-step: normalised expected counts, keyed and shaped as the fields of `HMMTables`.

        The floor, added to every count, keeps unseen events barely possible. The deviation from
        maximum likelihood matters only where a table has next to no counts.
        """
        for name in ("start", "transition", "emission"):
            # Rounding can take a count of nearly zero below zero.
            getattr(self, name).copy_((counts[name].clamp(min=0) + floor).log())


def _block_totals(scores: Tensor, block: Tensor, count: int) -> Tensor:
    """(C, K / C) log Σ exp(score) over the tokens of each block; reference implementation."""
    return torch.stack([torch.logsumexp(scores[block == number], 0) for number in range(count)])


class NeuralHMMParameters(HMMParameters):
    """Neural HMM: tables from an embedding e_z per state and x_s per token.

        P(z' | z) = softmax_z'(R out(e_z) · in(e_z')),  P(s | z) = softmax_s(emit(e_z) · x_s + b_s)

    over the tokens of the state's block; out, in and emit are residual MLPs, R a matrix.
    `state_dropout` removes that share of every block's states from a training batch, which saves
    time and regularises.
    """

    def __init__(
        self,
        states: int,
        width: int,
        vocabulary: Vocabulary,
        *,
        blocks: int = 1,
        state_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(states, vocabulary, blocks=blocks, state_dropout=state_dropout)
        self.vectors = nn.Parameter(torch.randn(states, width))
        self.first = nn.Parameter(torch.randn(width) * width**-0.5)
        self.words = nn.Parameter(torch.randn(vocabulary.size, width) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))
        self.out, self.into, self.emit = (ResidualMLP(width, dropout) for _ in range(3))
        # Without R, every state would be initialised to stay where it is.
        self.turn = nn.Linear(width, width, bias=False)

    def compute(self, subset: Tensor | None) -> HMMTables:
        vectors = self.vectors if subset is None else self.vectors[subset.flatten()]
        into = self.into(vectors)
        scale = into.shape[1] ** -0.5
        return HMMTables(
            start=torch.log_softmax(into @ self.first, 0),
            transition=torch.log_softmax(self.turn(self.out(vectors)) @ into.t() * scale, 1),
            emission=self._emission(self.emit(vectors)),
            block=self.block,
            kept_states=None if subset is None else subset.flatten(),
        )

    def _emission(self, emit: Tensor) -> Tensor:
        """(V, k) block by block: a token is scored by the states of its own block alone."""
        parts, token_ids = [], []
        bias = self.bias.masked_fill(self.never_predicted, -torch.inf)
        for number, states in enumerate(emit.view(self.blocks, -1, emit.shape[1])):
            tokens = torch.nonzero(self.block == number).squeeze(1)
            scores = torch.addmm(bias[tokens, None], self.words[tokens], states.t())
            parts.append(torch.log_softmax(scores, 0))
            token_ids.append(tokens)
        return torch.cat(parts)[torch.argsort(torch.cat(token_ids))]
