"""One decoding loop for every system that steps: greedy, ancestral, truncated.

The loop knows nothing of a system but `start`, `peek`, `advance` and `state.select`, so a bigram,
an LSTM, a GPT and a translator are decoded by the same lines. A system that can't step but draws
whole sequences (`Sample`) serves ancestral sampling too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical, inverse_cdf
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.protocols import Energy, Fill, LogProb, Sample, Step, require
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.collation import (
    group_by_length,
    pad_rows,
)
from lmlab.layers.per_example_rng import PerExampleGenerator
from lmlab.sampling.truncation import apply_filters, make_filters

MAX_NUMBERS = 16_000_000
"""Rows times vocabulary in one step; more rows than fit are drawn in several goes."""

TOKENS_PER_BATCH = 8192
"""In a batch of whole sequences whose log-probability is asked for."""

TokenChooser = Callable[[Categorical, Tensor], Tensor]
"""From the next token's distribution (rows, V), and which of all rows those are (rows,), to the ids
(rows,) that are taken."""
MaxLengths = int | Sequence[int]
"""A greatest length for all rows, or one for each."""


@dataclass(frozen=True, kw_only=True)
class GeneratedSequence:
    """A sequence that a system wrote."""

    tokens: tuple[int, ...]
    """Ids, the prefix included, without start and end symbol."""
    log_prob: float | None
    """The system's own log-probability, in nats, of all that follows the prefix, its end included;
    no temperature or truncation. None where the system can't tell."""
    finished: bool
    """Whether the end symbol came; if not, max_length cut it off."""
    given: int = 0
    """How many of the tokens are the prefix."""


def sample_sequences(
    system: object,
    rows: int,
    *,
    max_length: MaxLengths,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    prefix: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    condition: Batch | None = None,
) -> list[GeneratedSequence]:
    """Draw `rows` sequences, token by token: s_t ~ p(· | s_<t), truncated if asked.

    At most `max_length` tokens are drawn after the prefix, the end symbol included. A generator of
    `PerExampleGenerator` draws each row by numbers of its own, whatever rows stand beside it. Cost: one step
    a token for the rows that are not finished.
    """
    steps = make_filters(temperature=temperature, top_k=top_k, top_p=top_p)
    lengths = _lengths(rows, max_length)
    if not isinstance(system, Step) and isinstance(system, Sample):
        shaped = bool(steps or prefix)
        return _sample_whole(system, rows, max(lengths), shaped, generator, condition)

    def draw(distribution: Categorical, going: Tensor) -> Tensor:
        log_probs = apply_filters(steps, distribution).log_probs
        if isinstance(generator, PerExampleGenerator):
            return inverse_cdf(log_probs, generator.numbers((rows, 1), log_probs.device)[going])
        if generator is not None:
            log_probs = log_probs.to(generator.device)
        return Categorical(log_probs).sample(generator=generator)

    return decode(system, rows, draw, max_length=lengths, prefix=prefix, condition=condition)


def greedy_search(
    system: object,
    rows: int = 1,
    *,
    max_length: MaxLengths,
    prefix: Sequence[int] | None = None,
    condition: Batch | None = None,
) -> list[GeneratedSequence]:
    """The most probable token at every step; of equals the first id. Not the best sequence."""

    def best(distribution: Categorical, going: Tensor) -> Tensor:
        return distribution.log_probs.argmax(-1)

    return decode(system, rows, best, max_length=max_length, prefix=prefix, condition=condition)


def _require_step(system: object) -> None:
    """A UserError where a system can't be decoded; it names the chains where those would do."""
    if not isinstance(system, Step) and isinstance(system, (Fill, Energy)):
        raise UserError(
            "this system does not write token by token; Markov chains draw its texts: give "
            "--method gibbs or metropolis (in Python chains)."
        )
    require(system, Step, "decoding token by token")


def decode(
    system: Any,
    rows: int,
    choose: TokenChooser,
    *,
    max_length: MaxLengths,
    prefix: Sequence[int] | None = None,
    condition: Batch | None = None,
) -> list[GeneratedSequence]:
    """The loop: peek, choose, advance, until every row has ended or is `max_length` long."""
    _require_step(system)
    vocabulary: Vocabulary = system.vocabulary
    given = check_prefix(prefix, vocabulary)
    beside = [None] * rows if condition is None else condition.lengths.tolist()
    asked = zip(_lengths(rows, max_length), beside, strict=True)
    lengths = [max_new_tokens(system, given, length, condition=own) for length, own in asked]
    # A condition belongs to its rows, so those are not divided.
    most = rows if condition is not None else max(1, MAX_NUMBERS // vocabulary.size)
    written: list[GeneratedSequence] = []
    with evaluation_mode(system):
        for first in range(0, rows, most):
            some = torch.arange(first, min(first + most, rows))
            theirs = lengths[first : first + most]
            written += _decode_some(system, some, choose, theirs, given, condition)
    return written


def _decode_some(
    system: Any,
    rows: Tensor,
    choose: TokenChooser,
    lengths: Sequence[int],
    given: tuple[int, ...],
    condition: Batch | None,
) -> list[GeneratedSequence]:
    """Those of all rows whose numbers `rows` holds; `lengths` are theirs."""
    end = system.vocabulary.end
    state = state_after_prefix(system, len(rows), given, condition)
    tokens: list[list[int]] = [list(given) for _ in lengths]
    log_probs = torch.zeros(len(rows), dtype=torch.float64)
    finished = [False] * len(rows)
    going = torch.arange(len(rows))
    for length in itertools.count(1):
        distribution = next_distribution(system, state)
        chosen = choose(distribution, rows[going]).to(distribution.log_probs.device)
        log_probs[going] += distribution.log_prob(chosen).double().cpu()
        stays = []
        for place, (row, token) in enumerate(zip(going.tolist(), chosen.tolist(), strict=True)):
            if token == end:
                finished[row] = True
                continue
            tokens[row].append(token)
            if length < lengths[row]:
                stays.append(place)
        if not stays:
            break
        if len(stays) < len(going):
            # Finished rows leave the batch: what is still being written costs all there is.
            kept = torch.tensor(stays)
            going, chosen = going[kept], chosen[kept.to(chosen.device)]
            state = state.select(kept.to(chosen.device))
        state = system.advance(state, chosen)
    return [
        GeneratedSequence(
            tokens=tuple(tokens[row]),
            log_prob=float(log_probs[row]),
            finished=finished[row],
            given=len(given),
        )
        for row in range(len(rows))
    ]


def max_new_tokens(
    system: Any, prefix: Sequence[int], asked: int, *, condition: int | None = None
) -> int:
    """How many tokens can be written after a prefix: as many as asked, or as the system takes.

    `condition` is the tokens of what a text is given, where it is given something.
    """
    window: int | None = getattr(system, "window", None)
    if condition is not None and hasattr(system, "max_generation_length"):
        window = system.max_generation_length(condition)
    if window is None:
        return asked
    if len(prefix) >= window:
        raise UserError(
            f"this system takes at most {window} tokens at once, and the prefix has {len(prefix)}; "
            "give a shorter one."
        )
    return min(asked, window - len(prefix))


def next_distribution(system: Any, state: Any) -> Categorical:
    """The next token's distribution, or a UserError where the weights have gone wrong."""
    distribution: Categorical = system.peek(state)
    check_log_probs(distribution.log_probs)
    return distribution


def check_log_probs(log_probs: Tensor) -> None:
    """A UserError where log-probabilities are none."""
    # Numbers at most 0 add up to no number only where one of them is none.
    if log_probs.sum().isnan():
        raise UserError(
            "this model gives probabilities that are not numbers: its training has gone wrong, so "
            "train it again with a lower learning rate."
        )


def state_after_prefix(
    system: Any, rows: int, prefix: Sequence[int], condition: Batch | None = None
) -> Any:
    """The state of `rows` sequences after the start symbol and the given tokens."""
    state = system.start(rows, condition=condition)
    for token in prefix:
        state = system.advance(state, torch.full((rows,), token, device=device_of(system)))
    return state


def check_prefix(prefix: Sequence[int] | None, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The prefix as ids that can stand inside a sequence, or a UserError.

    An end symbol in it is an end of line, which contiguous text has inside.
    """
    given = tuple(prefix or ())
    for token in given:
        if not 0 <= token < vocabulary.size:
            raise UserError(
                f"a prefix needs token ids from 0 to {vocabulary.size - 1}, and {token} came."
            )
        if token in vocabulary.unpredictable:
            raise UserError(
                f"a prefix can't hold start, mask or padding, and id {token} is one of them; leave "
                "it out (the start symbol is added by itself)."
            )
    return given


def _lengths(rows: int, max_length: MaxLengths) -> list[int]:
    """The greatest length of each row."""
    if rows < 1:
        raise UserError(f"at least one sequence must be asked for, and {rows} came.")
    lengths = [max_length] * rows if isinstance(max_length, int) else list(max_length)
    assert len(lengths) == rows, "a greatest length for each row"
    if min(lengths) < 1:
        raise UserError(f"the greatest length must be 1 or more, and {min(lengths)} came.")
    return lengths


def _sample_whole(
    system: Any,
    rows: int,
    max_length: int,
    shaped: bool,
    generator: torch.Generator | None,
    condition: Batch | None,
) -> list[GeneratedSequence]:
    """Sequences from a system that draws them whole, each with its own log-probability."""
    if shaped:
        raise UserError(
            "this system draws whole sequences, so it can't follow a prefix, a temperature, top-k "
            "or top-p; leave them out."
        )
    end = system.vocabulary.end
    with evaluation_mode(system):
        drawn = system.sample(rows, max_length=max_length, condition=condition, generator=generator)
        finished = [bool(ids) and ids[-1] == end for ids in drawn]
        complete = [ids for ids, done in zip(drawn, finished, strict=True) if done]
        log_probs = iter(_log_probs_of(system, complete, condition))
    return [
        GeneratedSequence(
            tokens=tuple(ids[:-1] if done else ids),
            log_prob=next(log_probs) if done else None,
            finished=done,
        )
        for ids, done in zip(drawn, finished, strict=True)
    ]


def _log_probs_of(
    system: Any, sequences: list[list[int]], condition: Batch | None
) -> list[float | None]:
    """The system's own log-probability of each complete sequence, where it has one."""
    if condition is not None or not isinstance(system, LogProb):
        return [None] * len(sequences)
    vocabulary: Vocabulary = system.vocabulary  # type: ignore[attr-defined]
    first = vocabulary.end if vocabulary.start is None else vocabulary.start
    assert first is not None, "a vocabulary needs a start or an end symbol"
    found: list[float | None] = [None] * len(sequences)
    for group in group_by_length([len(ids) + 1 for ids in sequences], TOKENS_PER_BATCH):
        batch = pad_rows([[first, *sequences[index]] for index in group], system)
        for index, total in zip(group, system.log_prob(batch).totals.tolist(), strict=True):
            found[index] = total
    return found
