"""Greedy search and ancestral sampling (temperature, top-k, top-p), after prefixes and sources.

The loop itself is `lmlab.inference.decoding`. A system without `Step` that samples whole sequences
(`Sample`) serves ancestral sampling too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical, inverse_cdf
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import Decoder, LogProb, Step, require
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.core.system_protocols import SampleSystem, SystemInfo
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import group_by_length, pad_rows
from lmlab.inference.decoding import GeneratedSequence, TokenChoice, decode, greedy_choice
from lmlab.layers.per_example_rng import PerExampleGenerator


class DistributionFilter(Protocol):
    """A filter of the next token's distribution, row by row."""

    def __call__(self, distribution: Categorical) -> Categorical: ...


@dataclass(frozen=True)
class Temperature:
    """Temperature p_i^(1/t) / Σ_j p_j^(1/t): below 1 sharper, above 1 flatter, at 1 the same."""

    value: float

    def __post_init__(self) -> None:
        if not 0 < self.value < float("inf"):
            raise UserError(
                f"a temperature must be above 0, got {self.value:g}; for the most probable "
                "token every time choose greedy decoding."
            )

    def __call__(self, distribution: Categorical) -> Categorical:
        log_probs = distribution.log_probs.double()
        # Shift the maximum to 0 first, so that even a tiny temperature leaves it finite.
        above = log_probs - log_probs.amax(-1, keepdim=True)
        return Categorical(torch.log_softmax(above / self.value, -1))


@dataclass(frozen=True)
class TopK:
    """Top-k sampling: only the k most probable tokens (Fan et al. 2018); ties by lower id."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"top-k must be 1 or more, got {self.count}.")

    def __call__(self, distribution: Categorical) -> Categorical:
        log_probs = distribution.log_probs
        order = log_probs.argsort(dim=-1, descending=True, stable=True)
        dropped = order[..., self.count :]
        return Categorical(torch.log_softmax(log_probs.scatter(-1, dropped, float("-inf")), -1))


@dataclass(frozen=True)
class TopP:
    """Nucleus (top-p) sampling: the fewest most probable tokens whose mass reaches p.

    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration.
    """

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, got {self.mass:g}.")

    def __call__(self, distribution: Categorical) -> Categorical:
        if self.mass == 1:
            return distribution
        log_probs = distribution.log_probs
        sorted_log_probs, order = log_probs.sort(dim=-1, descending=True, stable=True)
        probs = sorted_log_probs.double().exp()
        # A token stays if those before it have not reached the mass; the first always stays. The
        # margin keeps rounding from letting in one more where a sum reaches p exactly.
        outside = (probs.cumsum(-1) - probs) >= self.mass - 1e-6
        outside[..., 0] = False
        kept = sorted_log_probs.masked_fill(outside, float("-inf"))
        filtered = torch.full_like(log_probs, float("-inf")).scatter(-1, order, kept)
        return Categorical(torch.log_softmax(filtered, -1))


def make_filters(
    *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> tuple[DistributionFilter, ...]:
    """The given filters, in the usual order: temperature, then top-k, then top-p."""
    filters: list[DistributionFilter] = []
    if temperature != 1.0:
        filters.append(Temperature(temperature))
    if top_k is not None:
        filters.append(TopK(top_k))
    if top_p is not None:
        filters.append(TopP(top_p))
    return tuple(filters)


def apply_filters(filters: Sequence[DistributionFilter], distribution: Categorical) -> Categorical:
    """Apply the filters in order."""
    for filter_step in filters:
        distribution = filter_step(distribution)
    return distribution


MAX_NUMBERS = 16_000_000
"""Rows times vocabulary in one step; more rows than that are sampled in several groups."""

TOKENS_PER_BATCH = 8192
"""In a batch of whole sequences that are scored."""

MaxLengths = int | Sequence[int]
"""A maximum length for all rows, or one for each."""
Generator: TypeAlias = System | Decoder
"""What generates sequences: a system that can, or a decoder that is no system by itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedSources:
    """Sources with the system's state after encoding them, from which several strategies decode."""

    batch: Batch
    state: State

    @classmethod
    def encode(cls, system: Step, batch: Batch) -> EncodedSources:
        """The state of a system that is given each row of a batch."""
        with evaluation_mode(system):
            return cls(batch=batch, state=system.start(len(batch), condition=batch))

    def __len__(self) -> int:
        return len(self.batch)

    def select(self, rows: Tensor) -> EncodedSources:
        return EncodedSources(batch=self.batch.select(rows), state=self.state.select(rows))


def sample_sequences(
    system: Generator,
    rows: int,
    *,
    max_length: MaxLengths,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    prefix: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    condition: Batch | None = None,
    sources: EncodedSources | None = None,
) -> list[GeneratedSequence]:
    """Ancestral sampling of `rows` sequences: s_t ~ p(· | s_<t), with truncation if given.

    At most `max_length` tokens are sampled after the prefix, the end token included. A
    `PerExampleGenerator` samples each row by numbers of its own, whatever the other rows. Cost:
    one step per token for the rows that are not finished.
    """
    steps = make_filters(temperature=temperature, top_k=top_k, top_p=top_p)
    lengths = _lengths(rows, max_length)
    if not isinstance(system, Step) and isinstance(system, SampleSystem):
        shaped = bool(steps or prefix)
        return _sample_whole(system, rows, max(lengths), shaped, generator, condition)

    def choose(distribution: Categorical, numbers: Tensor) -> Tensor:
        log_probs = apply_filters(steps, distribution).log_probs
        if isinstance(generator, PerExampleGenerator):
            return inverse_cdf(log_probs, generator.numbers((rows, 1), log_probs.device)[numbers])
        if generator is not None:
            log_probs = log_probs.to(generator.device)
        return Categorical(log_probs).sample(generator=generator)

    return decode_rows(
        system,
        rows,
        choose,
        max_length=lengths,
        prefix=prefix,
        condition=condition,
        sources=sources,
    )


def greedy_search(
    system: Generator,
    rows: int = 1,
    *,
    max_length: MaxLengths,
    prefix: Sequence[int] | None = None,
    condition: Batch | None = None,
    sources: EncodedSources | None = None,
) -> list[GeneratedSequence]:
    """The most probable token at every step; of equals the first id. Not the best sequence."""
    return decode_rows(
        system,
        rows,
        greedy_choice,
        max_length=max_length,
        prefix=prefix,
        condition=condition,
        sources=sources,
    )


def require_decoder(system: Generator, verb: str) -> Decoder:
    """A system that decodes; a UserError if it can't, which suggests MCMC where that applies."""
    if isinstance(system, Decoder):
        return system
    if system.scorer_kind in ("masked", "energy"):
        raise UserError(
            "this system does not generate token by token; sample its texts by MCMC: "
            "--method gibbs or metropolis (in Python chains)."
        )
    return require(system, Decoder, verb)


def decode_rows(
    system: Generator,
    rows: int,
    choose: TokenChoice,
    *,
    max_length: MaxLengths,
    prefix: Sequence[int] | None = None,
    condition: Batch | None = None,
    sources: EncodedSources | None = None,
) -> list[GeneratedSequence]:
    """Decode rows after a prefix, given a condition or sources that are already encoded."""
    decoder = require_decoder(system, "decoding token by token")
    vocabulary = decoder.vocabulary
    given = check_prefix(prefix, vocabulary)
    if condition is not None:
        sources = EncodedSources.encode(decoder, condition)
    conditions = [None] * rows if sources is None else sources.batch.lengths.tolist()
    limits = zip(_lengths(rows, max_length), conditions, strict=True)
    lengths = [
        max_new_tokens(decoder, given, length, condition=condition_tokens)
        for length, condition_tokens in limits
    ]
    # Sources belong to their rows, so those are not split into groups.
    group_size = rows if sources is not None else max(1, MAX_NUMBERS // vocabulary.size)
    generated: list[GeneratedSequence] = []
    with evaluation_mode(system):
        for first in range(0, rows, group_size):
            group = torch.arange(first, min(first + group_size, rows))
            state = decoder.start(len(group)) if sources is None else sources.state
            state = state_after_prefix(decoder, state, len(group), given)
            group_lengths = lengths[first : first + group_size]
            generated += decode(decoder, state, choose, group_lengths, prefix=given, rows=group)
    return generated


def max_new_tokens(
    system: Decoder, prefix: Sequence[int], max_length: int, *, condition: int | None = None
) -> int:
    """The number of tokens that can be generated after a prefix: `asked`, limited by the window.

    `condition` is the number of tokens of the condition, if there is one.
    """
    window = system.max_generation_length(condition)
    if window is None:
        return max_length
    if len(prefix) >= window:
        raise UserError(
            f"this system takes at most {window} tokens at once, and the prefix has {len(prefix)}; "
            "give a shorter one."
        )
    return min(max_length, window - len(prefix))


def state_after_prefix(system: Step, state: State, rows: int, prefix: Sequence[int]) -> State:
    """The state of `rows` sequences after the tokens of a prefix."""
    for token in prefix:
        state = system.advance(state, torch.full((rows,), token, device=device_of(system)))
    return state


def check_prefix(prefix: Sequence[int] | None, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The prefix as ids allowed inside a sequence, or a UserError.

    An end token in it is a line end, which contiguous text contains.
    """
    given = tuple(prefix or ())
    for token in given:
        if not 0 <= token < vocabulary.size:
            raise UserError(
                f"a prefix needs token ids from 0 to {vocabulary.size - 1}, got {token}."
            )
        if token in vocabulary.unpredictable:
            raise UserError(
                f"a prefix can't hold start, mask or padding, and id {token} is one of them; "
                "remove it (the start token is added automatically)."
            )
    return given


def _lengths(rows: int, max_length: MaxLengths) -> list[int]:
    """The maximum length of each row."""
    if rows < 1:
        raise UserError(f"the number of sequences must be 1 or more, got {rows}.")
    lengths = [max_length] * rows if isinstance(max_length, int) else list(max_length)
    assert len(lengths) == rows, "a greatest length for each row"
    if min(lengths) < 1:
        raise UserError(f"the maximum length must be 1 or more, got {min(lengths)}.")
    return lengths


def _sample_whole(
    system: SampleSystem,
    rows: int,
    max_length: int,
    filtered: bool,
    generator: torch.Generator | None,
    condition: Batch | None,
) -> list[GeneratedSequence]:
    """Sequences from a system that samples them whole, each with its log-probability."""
    if filtered:
        raise UserError(
            "a prefix, temperature, top-k and top-p do not apply to this system, which "
            "samples whole sequences; remove them."
        )
    end = system.vocabulary.end
    with evaluation_mode(system):
        sampled = system.sample(
            rows, max_length=max_length, condition=condition, generator=generator
        )
        finished = [bool(ids) and ids[-1] == end for ids in sampled]
        complete = [ids for ids, done in zip(sampled, finished, strict=True) if done]
        log_probs = iter(_log_probs_of(system, complete, condition))
    return [
        GeneratedSequence(
            tokens=tuple(ids[:-1] if done else ids),
            log_prob=next(log_probs) if done else None,
            finished=done,
        )
        for ids, done in zip(sampled, finished, strict=True)
    ]


def _log_probs_of(
    system: SystemInfo, sequences: list[list[int]], condition: Batch | None
) -> list[float | None]:
    """The system's log-probability of each complete sequence, if it has one."""
    if condition is not None or not isinstance(system, LogProb):
        return [None] * len(sequences)
    vocabulary = system.vocabulary
    first = vocabulary.end if vocabulary.start is None else vocabulary.start
    assert first is not None, "a vocabulary needs a start or an end token"
    log_probs: list[float | None] = [None] * len(sequences)
    for group in group_by_length([len(ids) + 1 for ids in sequences], TOKENS_PER_BATCH):
        batch = pad_rows([[first, *sequences[index]] for index in group], system)
        for index, total in zip(group, system.log_prob(batch).totals.tolist(), strict=True):
            log_probs[index] = total
    return log_probs
