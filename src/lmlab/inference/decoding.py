"""Token-by-token decoding loop of autoregressive models, with greedy and ancestral choice.

The loop uses only `peek`, `advance` and `state.select`, so a bigram, an LSTM, a GPT and a
translation model share it; a strategy is the choice of the token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.distribution import Categorical, inverse_cdf
from lmlab.core.errors import UserError
from lmlab.core.protocols import Decoder, Step
from lmlab.core.state import State

TokenChoice = Callable[[Categorical, Tensor], Tensor]
"""From the next token's distribution (rows, V) and the row numbers (rows,) to the chosen ids
(rows,)."""


@dataclass(frozen=True, kw_only=True)
class GeneratedSequence:
    """A generated sequence."""

    tokens: tuple[int, ...]
    """Ids, the prefix included, without start and end token."""
    log_prob: float | None
    """The system's own log-probability, in nats, of all that follows the prefix, the end token
    included; without temperature or truncation. None if unknown."""
    finished: bool
    """Whether the end token was generated; if not, the sequence was cut at the maximum length."""
    given: int = 0
    """The number of tokens of the prefix."""


def decode(
    system: Decoder,
    state: State,
    choose: TokenChoice,
    max_lengths: Sequence[int],
    *,
    prefix: tuple[int, ...] = (),
    rows: Tensor | None = None,
) -> list[GeneratedSequence]:
    """Decode from a state until every row has ended or has its maximum length.

    `prefix` are the tokens that the state is after, the same for all rows; `rows` are the numbers
    of the rows that `choose` is given, 0, 1, … by default. Cost: one step per token for the rows
    that are not finished.
    """
    end, count = system.vocabulary.end, len(max_lengths)
    rows = torch.arange(count) if rows is None else rows
    tokens: list[list[int]] = [list(prefix) for _ in max_lengths]
    log_probs = torch.zeros(count, dtype=torch.float64)
    finished = [False] * count
    active = torch.arange(count)
    for length in itertools.count(1):
        distribution = next_distribution(system, state)
        chosen = choose(distribution, rows[active]).to(distribution.log_probs.device)
        log_probs[active] += distribution.log_prob(chosen).double().cpu()
        continuing = []
        for index, (row, token) in enumerate(zip(active.tolist(), chosen.tolist(), strict=True)):
            if token == end:
                finished[row] = True
                continue
            tokens[row].append(token)
            if length < max_lengths[row]:
                continuing.append(index)
        if not continuing:
            break
        if len(continuing) < len(active):
            # Finished rows leave the batch.
            selected = torch.tensor(continuing)
            active, chosen = active[selected], chosen[selected.to(chosen.device)]
            state = state.select(selected.to(chosen.device))
        state = system.advance(state, chosen)
    return [
        GeneratedSequence(
            tokens=tuple(tokens[row]),
            log_prob=float(log_probs[row]),
            finished=finished[row],
            given=len(prefix),
        )
        for row in range(count)
    ]


def greedy_choice(distribution: Categorical, rows: Tensor) -> Tensor:
    """Greedy decoding: the most probable token; ties go to the first id."""
    return distribution.log_probs.argmax(-1)


def ancestral_choice(generator: torch.Generator | None) -> TokenChoice:
    """Ancestral sampling: each token from its distribution, by one random number per row."""

    def choose(distribution: Categorical, rows: Tensor) -> Tensor:
        log_probs = distribution.log_probs
        return sample_tokens(
            log_probs if generator is None else log_probs.to(generator.device), generator=generator
        )

    return choose


def sample_tokens(log_probs: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """(B,) a token of each row of (B, V) by inverse transform sampling.

    It takes one random number per row, where `Categorical.sample` takes V of them, which is most
    of the time of sampling from a word model.
    """
    uniforms = torch.rand(len(log_probs), 1, generator=generator, dtype=torch.double)
    return inverse_cdf(log_probs, uniforms.to(log_probs.device))


def next_distribution(system: Step, state: State) -> Categorical:
    """The next token's distribution; raises a UserError if it has NaNs."""
    distribution = system.peek(state)
    check_log_probs(distribution.log_probs)
    return distribution


def check_log_probs(log_probs: Tensor) -> None:
    """Raise a UserError if log-probabilities are NaN."""
    # A sum of numbers that are at most 0 is NaN only if one of them is.
    if log_probs.sum().isnan():
        raise UserError(
            "the probabilities of this model are NaN: its training has diverged; train it "
            "again with a lower learning rate."
        )
