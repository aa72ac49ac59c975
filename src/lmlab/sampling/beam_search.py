"""Beam search on `Step`: approximately the most probable sequences, with length penalty.

One implementation for every system with `Step`, given a batch of sources or none.
"""

from __future__ import annotations

import bisect
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.limits import check_limit
from lmlab.core.protocols import Decoder, Step, require
from lmlab.core.state import State
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.decoding import GeneratedSequence
from lmlab.sampling.beam_expansion import (
    Continuations,
    PartialHypothesis,
    constrained_continuations,
    top_continuations,
)
from lmlab.sampling.decoding import (
    EncodedSources,
    Generator,
    check_prefix,
    max_new_tokens,
    state_after_prefix,
)
from lmlab.sampling.lexical_constraints import LexicalConstraints, Phrase, allocate_beam


@dataclass(frozen=True, kw_only=True)
class Hypothesis(GeneratedSequence):
    """A decoded sequence; `log_prob` is the system's own, `score` ranks it."""

    score: float = 0.0
    """log_prob / length^penalty, the length counted after the prefix, end token included."""
    missing: tuple[Phrase, ...] = ()
    """Required phrases that are missing; none in a finished sequence."""


@dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """Settings of beam search.

    Hypotheses are ranked by log p(y) / |y|^length_penalty, |y| the tokens after the prefix with the
    end token: 0 ranks by probability, 1 by mean log-probability per token.
    """

    width: int = 4
    """Beam width: open hypotheses per step. Finished ones do not count."""
    best: int = 1
    """Number of sequences returned, best first; the first does not depend on it."""
    length_penalty: float = 0.0
    """Length penalty, 0 or more; larger values prefer longer sequences."""
    max_length: int = 100
    """Maximum tokens after the prefix, end token included."""
    ahead: int | None = None
    """Look-ahead of the stopping criterion: further tokens assumed in an open hypothesis' bound.

    None for all up to `max_length`: exact, but with a length penalty most searches continue long
    after the best was found. Translations hardly gain beyond the next few tokens.
    """
    within: float = math.inf
    """Relative pruning: drop open hypotheses this many nats behind the best (Freitag and Al-Onaizan
    2017), except under required phrases, which may cost that much."""

    def __post_init__(self) -> None:
        for name, value in (
            ("beam width", self.width),
            ("number of sequences", self.best),
            ("maximum length", self.max_length),
        ):
            if value < 1:
                raise UserError(f"the {name} must be 1 or more, got {value}.")
        check_limit("beam", self.width, called="the beam width")
        check_limit("texts", self.best, called="the number of sequences")
        check_limit("length", self.max_length, called="the maximum length")
        if self.ahead is not None and self.ahead < 0:
            raise UserError(f"tokens ahead must be 0 or more, got {self.ahead}.")
        if not self.within >= 0:
            raise UserError(f"nats behind the best must be 0 or more, got {self.within:g}.")
        if not 0 <= self.length_penalty < float("inf"):
            raise UserError(f"a length penalty must be 0 or more, got {self.length_penalty:g}.")

    def apply_length_penalty(self, log_prob: float, length: int) -> float:
        """The ranking score of a sequence, log p(y) / |y|^length_penalty."""
        penalty: float = length**self.length_penalty
        return log_prob / penalty

    def optimistic_score(self, log_prob: float, length: int) -> float:
        """Upper bound of the score of an open hypothesis of `length` tokens; assumed, with `ahead`.

        Its log-probability can only fall: at best it stays and is divided by the greatest length.
        """
        max_length = self.max_length
        if self.ahead is not None:
            max_length = min(max_length, length + 1 + self.ahead)
        return self.apply_length_penalty(log_prob, max_length)


def beam_search(
    system: Generator,
    beam: BeamConfig,
    *,
    sources: int = 1,
    prefix: Sequence[int] | None = None,
    condition: Batch | None = None,
    encoded: EncodedSources | None = None,
    constraints: LexicalConstraints | None = None,
    max_lengths: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The best sequences of each source (row of the condition), best first.

    `encoded` are already encoded sources, instead of a condition.

    Constraints forbid tokens but do not renormalise: log-probabilities stay the system's own. The
    constraints' prefix counts as generated, with its log-probability; `prefix` is given and does
    not count. `max_lengths` are the maximum lengths after both, one per source, if they differ.

    At each step every open hypothesis is also tried as finished, and the `width` best continuations
    stay open. A source's search stops when no open hypothesis can still precede the worst of the
    `best` retained, so a beam as wide as the space is exhaustive search unless `ahead` or `within`
    prunes it. Sequences still open at the maximum length are returned only if too few finished,
    after those, with `finished` false. Cost: at most max_length steps of sources × width rows.
    """
    decoder = require(system, Decoder, "beam search")
    vocabulary = decoder.vocabulary
    constraints = constraints or LexicalConstraints()
    given_prefix = check_prefix(prefix, vocabulary)
    forced_prefix = check_prefix(constraints.prefix, vocabulary)
    if condition is not None:
        encoded = EncodedSources.encode(decoder, condition)
    if encoded is not None:
        sources = len(encoded)
    if sources < 1:
        raise UserError(f"the number of sources must be 1 or more, got {sources}.")
    source_lengths = [None] * sources if encoded is None else encoded.batch.lengths.tolist()
    both = given_prefix + forced_prefix
    limits = [max_new_tokens(decoder, both, beam.max_length, condition=n) for n in source_lengths]
    requested = limits if max_lengths is None else max_lengths
    lengths = [len(forced_prefix) + min(pair) for pair in zip(limits, requested, strict=True)]
    beams = [replace(beam, max_length=length) for length in lengths]
    with evaluation_mode(system):
        state = decoder.start(sources) if encoded is None else encoded.state
        state = state_after_prefix(decoder, state, sources, given_prefix)
        state, log_probs = _force_prefix(decoder, state, sources, forced_prefix)
        searches = [
            _Search(config, given_prefix, constraints, open=[_Open(forced_prefix, log_prob)])
            for config, log_prob in zip(beams, log_probs, strict=True)
        ]
        for length in range(len(forced_prefix) + 1, max(lengths) + 1):
            distributions = decoder.peek(state).log_probs
            rows, tokens = _extend_all(searches, distributions, length, vocabulary)
            if not rows:
                break
            device = distributions.device
            state = state.select(torch.tensor(rows, device=device))
            state = decoder.advance(state, torch.tensor(tokens, device=device))
    return [search.results() for search in searches]


def _force_prefix(
    system: Step, state: State, sources: int, prefix: Phrase
) -> tuple[State, list[float]]:
    """The state of each source after the constraints' prefix, and the prefix's log-probability."""
    totals = torch.zeros(sources, dtype=torch.float64)
    for token in prefix:
        values = system.peek(state).log_probs[:, token]
        totals += values.double().cpu()
        state = system.advance(state, torch.full((sources,), token, device=values.device))
    return state, totals.tolist()


class _Open(NamedTuple):
    """An open hypothesis: the tokens after the prefix, and their log-probability."""

    tokens: tuple[int, ...]
    log_prob: float


def _extend_all(
    searches: Sequence[_Search], log_probs: Tensor, length: int, vocabulary: Vocabulary
) -> tuple[list[int], list[int]]:
    """One step of every search; the rows that continue and the token of each."""
    continuations = _continuations(log_probs, searches, length, vocabulary.end)
    rows: list[int] = []
    tokens: list[int] = []
    first = 0
    for search in searches:
        count = len(search.open)
        chosen = search.extend(continuations[first : first + count], length)
        rows += [first + row for row, _ in chosen]
        tokens += [token for _, token in chosen]
        first += count
    return rows, tokens


def _continuations(
    log_probs: Tensor, searches: Sequence[_Search], length: int, end: int | None
) -> list[Continuations]:
    """The continuations of every row (rows, V), all rows at once."""
    width, constraints = searches[0].beam.width, searches[0].constraints
    if not (constraints.banned or constraints.required):
        return top_continuations(log_probs, width, end)
    rows = [
        PartialHypothesis((*search.prefix, *tokens), last=length == search.beam.max_length)
        for search in searches
        for tokens, _ in search.open
    ]
    return constrained_continuations(constraints, rows, log_probs, width, end)


@dataclass
class _Search:
    """The beam search of one source."""

    beam: BeamConfig
    prefix: tuple[int, ...]
    constraints: LexicalConstraints
    open: list[_Open]
    kept: list[Hypothesis] = field(default_factory=list)
    """Finished hypotheses, best first, at most `best` of them."""
    settled: int = 0
    """How many of `kept`, from the first, no open hypothesis can precede any more."""
    cut_off: list[_Open] = field(default_factory=list)
    """Hypotheses still open at the maximum length."""

    def extend(self, continuations: Sequence[Continuations], length: int) -> list[tuple[int, int]]:
        """Try each open hypothesis (row) as finished; the best continuations, as (row, token)."""
        if not self.open:
            return []
        for hypothesis, continuation in zip(self.open, continuations, strict=True):
            self._keep(hypothesis.tokens, hypothesis.log_prob + continuation.end_log_prob, length)
        chosen = self._chosen(continuations)
        self.open = [_Open((*self.open[r].tokens, token), value) for r, token, value in chosen]
        self._settle(length)
        if self.settled == self.beam.best:
            self.open = []
        elif length == self.beam.max_length:
            self.open, self.cut_off = [], self.open
        return [(row, token) for row, token, _ in chosen] if self.open else []

    def _chosen(self, continuations: Sequence[Continuations]) -> list[tuple[int, int, float]]:
        """The continuations that stay open, as (row, token, log-probability), best first."""
        required = self.constraints.required
        totals = [hypothesis.log_prob for hypothesis in self.open]
        min_log_prob = -sys.float_info.max
        if not required:
            best = max(map(operator.add, totals, (max(row.log_probs) for row in continuations)))
            min_log_prob = max(min_log_prob, best - self.beam.within)
        candidates = [
            (row, token, value)
            for row, (total, following) in enumerate(zip(totals, continuations, strict=True))
            for token, log_prob in zip(following.tokens, following.log_probs, strict=True)
            if (value := total + log_prob) >= min_log_prob
        ]
        if not required:
            candidates.sort(key=operator.itemgetter(2), reverse=True)
            return candidates[: self.beam.width]
        sequences = [(*self.prefix, *hypothesis.tokens) for hypothesis in self.open]
        satisfied = self.constraints.satisfied
        return allocate_beam(
            [
                (r, token, value, satisfied((*sequences[r], token)))
                for r, token, value in candidates
            ],
            self.beam.width,
        )

    def _keep(self, tokens: tuple[int, ...], log_prob: float, length: int) -> None:
        """Retain a finished hypothesis if it ranks among the best and after the settled ones.

        One that comes too late to be first is not ranked second either: the first of the N best are
        the result of a search for fewer.
        """
        score = self.beam.apply_length_penalty(log_prob, length)
        full = len(self.kept) == self.beam.best
        if log_prob == -math.inf or (full and score <= self.kept[-1].score):
            return
        if self.settled and score > self.kept[self.settled - 1].score:
            return
        hypothesis = self._hypothesis(tokens, log_prob, length, finished=True)
        # After its ties: the earlier one stays first for any number of sequences.
        bisect.insort_right(self.kept, hypothesis, key=lambda other: -other.score)
        del self.kept[self.beam.best :]

    def _settle(self, length: int) -> None:
        """Count the retained ones that no open hypothesis of `length` tokens can precede."""
        best = max((hypothesis.log_prob for hypothesis in self.open), default=-math.inf)
        bound = self.beam.optimistic_score(best, length)
        while self.settled < len(self.kept) and bound <= self.kept[self.settled].score:
            self.settled += 1

    def results(self) -> list[Hypothesis]:
        cut_off = [
            self._hypothesis(tokens, log_prob, self.beam.max_length, finished=False)
            for tokens, log_prob in sorted(self.cut_off, key=lambda cut: -cut.log_prob)
        ]
        return (self.kept + cut_off)[: self.beam.best]

    def _hypothesis(
        self, tokens: tuple[int, ...], log_prob: float, length: int, *, finished: bool
    ) -> Hypothesis:
        sequence = self.prefix + tokens
        return Hypothesis(
            tokens=sequence,
            log_prob=log_prob,
            finished=finished,
            given=len(self.prefix),
            score=self.beam.apply_length_penalty(log_prob, length),
            missing=self.constraints.missing(sequence),
        )
