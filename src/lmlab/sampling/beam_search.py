"""Beam search on `Step`: the most probable sequences, as far as a beam sees.

Written once for every system that steps; for a batch of sources (a translator) as for none.
"""

from __future__ import annotations

import bisect
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.limits import check_limit
from lmlab.core.protocols import Step, require
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.decoding import GeneratedSequence
from lmlab.sampling.beam_expansion import (
    Continuations,
    PartialHypothesis,
    constrained_continuations,
    top_continuations,
)
from lmlab.sampling.decoding import EncodedSources, check_prefix, max_new_tokens, state_after_prefix
from lmlab.sampling.lexical_constraints import (
    LexicalConstraints,
    Phrase,
    allocate_beam,
)


@dataclass(frozen=True, kw_only=True)
class Hypothesis(GeneratedSequence):
    """A sequence that the search found; `log_prob` is the system's own, `score` what ranked it."""

    score: float = 0.0
    """log_prob / length^penalty, the length counted from the prefix with the end symbol."""
    missing: tuple[Phrase, ...] = ()
    """What was required and is not there; of a finished sequence nothing."""


@dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """How a search goes.

    Hypotheses are ranked by log p(y) / |y|^length_penalty, |y| the tokens after the prefix with
    the end symbol: 0 ranks by probability, 1 by the mean log-probability of a token.
    """

    width: int = 4
    """Open hypotheses that are kept at each step. One that ends takes no place among them."""
    best: int = 1
    """How many sequences are given back, best first; the first is the same whatever this is."""
    length_penalty: float = 0.0
    """0 or more; the greater, the longer the sequences."""
    max_length: int = 100
    """Most tokens after the prefix, the end symbol included."""
    ahead: int | None = None
    """How many more tokens an open hypothesis is believed to gain by, where length counts.

    None for all up to `max_length`: nothing is lost, and with a length penalty most searches go on
    for long after the best was found. Translations hardly gain beyond the next few.
    """
    within: float = math.inf
    """Open hypotheses that fall so many nats behind the best one are dropped (Freitag and
    Al-Onaizan 2017), unless something is required of them: those may be far behind for it."""

    def __post_init__(self) -> None:
        for what, value in (
            ("beam width", self.width),
            ("number of sequences", self.best),
            ("greatest length", self.max_length),
        ):
            if value < 1:
                raise UserError(f"the {what} must be 1 or more, and {value} came.")
        check_limit("beam", self.width, called="the beam width")
        check_limit("texts", self.best, called="the number of sequences")
        check_limit("length", self.max_length, called="the greatest length")
        if self.ahead is not None and self.ahead < 0:
            raise UserError(f"tokens ahead must be 0 or more, and {self.ahead} came.")
        if not self.within >= 0:
            raise UserError(f"nats behind the best must be 0 or more, and {self.within:g} came.")
        if not 0 <= self.length_penalty < float("inf"):
            raise UserError(
                f"a length penalty must be 0 or more, and {self.length_penalty:g} came."
            )

    def score(self, log_prob: float, length: int) -> float:
        """What a sequence is ranked by."""
        return log_prob / length**self.length_penalty

    def optimistic_score(self, log_prob: float, length: int) -> float:
        """The most that is believed of an open hypothesis that has `length` tokens.

        Its log-probability only falls, so at best it stays and is divided by the greatest length.
        """
        longest = self.max_length
        if self.ahead is not None:
            longest = min(longest, length + 1 + self.ahead)
        return self.score(log_prob, longest)


def beam_search(
    system: Any,
    beam: BeamConfig,
    *,
    sources: int = 1,
    prefix: Sequence[int] | None = None,
    condition: Batch | None = None,
    encoded: EncodedSources | None = None,
    constraints: LexicalConstraints | None = None,
    max_lengths: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The best sequences for each source (row of the condition), best first.

    `encoded` are sources that are already encoded, in place of a condition.

    Those that keep to the constraints, where there are any: what they forbid is not tried, and
    log-probabilities stay the system's own. What they say of the beginning counts as found, where
    a `prefix` is given and counts nowhere. `max_lengths` are the greatest lengths after both, one
    for each source, where they differ.

    At each step every open hypothesis is also tried as ended, and the `width` best ways to go on
    stay open. The search for a source stops when no open hypothesis can still come before the
    worst of the `best` that are kept, so a beam as wide as the space is exhaustive search, if
    neither `ahead` nor `within` cuts it short.
    Sequences still open at their greatest length are given only where too few ended, after those
    that did, with `finished` false. Cost: at most max_length steps of sources × width rows.
    """
    require(system, Step, "beam search")
    vocabulary: Vocabulary = system.vocabulary
    keeping = constraints or LexicalConstraints()
    given, beginning = (check_prefix(each, vocabulary) for each in (prefix, keeping.prefix))
    if condition is not None:
        encoded = EncodedSources.encode(system, condition)
    if encoded is not None:
        sources = len(encoded)
    if sources < 1:
        raise UserError(f"at least one source must be given, and {sources} came.")
    beside = [None] * sources if encoded is None else encoded.batch.lengths.tolist()
    most = [
        max_new_tokens(system, given + beginning, beam.max_length, condition=own) for own in beside
    ]
    asked = most if max_lengths is None else max_lengths
    lengths = [len(beginning) + min(pair) for pair in zip(most, asked, strict=True)]
    beams = [replace(beam, max_length=length) for length in lengths]
    with evaluation_mode(system):
        state = system.start(sources) if encoded is None else encoded.state
        state = state_after_prefix(system, state, sources, given)
        state, log_probs = _begun(system, state, sources, beginning)
        searches = [
            _Search(each, given, keeping, open=[_Open(beginning, log_prob)])
            for each, log_prob in zip(beams, log_probs, strict=True)
        ]
        for length in range(len(beginning) + 1, max(lengths) + 1):
            distributions = system.peek(state).log_probs
            rows, tokens = _extend_all(searches, distributions, length, vocabulary)
            if not rows:
                break
            device = distributions.device
            state = state.select(torch.tensor(rows, device=device))
            state = system.advance(state, torch.tensor(tokens, device=device))
    return [search.results() for search in searches]


def _begun(system: Any, state: Any, sources: int, beginning: Phrase) -> tuple[Any, list[float]]:
    """The state of each source after a beginning, and the beginning's own log-probability."""
    totals = torch.zeros(sources, dtype=torch.float64)
    for token in beginning:
        values = system.peek(state).log_probs[:, token]
        totals += values.double().cpu()
        state = system.advance(state, torch.full((sources,), token, device=values.device))
    return state, totals.tolist()


class _Open(NamedTuple):
    """A hypothesis that goes on: what follows the prefix, and its log-probability."""

    tokens: tuple[int, ...]
    log_prob: float


def _extend_all(
    searches: Sequence[_Search], log_probs: Tensor, length: int, vocabulary: Vocabulary
) -> tuple[list[int], list[int]]:
    """One step of every search; the rows that go on, and the token each goes on with."""
    ways = _ways_on(log_probs, searches, length, vocabulary.end)
    rows: list[int] = []
    tokens: list[int] = []
    first = 0
    for search in searches:
        count = len(search.open)
        chosen = search.extend(ways[first : first + count], length)
        rows += [first + row for row, _ in chosen]
        tokens += [token for _, token in chosen]
        first += count
    return rows, tokens


def _ways_on(
    log_probs: Tensor, searches: Sequence[_Search], length: int, end: int | None
) -> list[Continuations]:
    """The ways on of every row (rows, V), all rows at once."""
    width, constraints = searches[0].beam.width, searches[0].constraints
    if not (constraints.banned or constraints.required):
        return top_continuations(log_probs, width, end)
    rows = [
        PartialHypothesis((*search.prefix, *each.tokens), last=length == search.beam.max_length)
        for search in searches
        for each in search.open
    ]
    return constrained_continuations(constraints, rows, log_probs, width, end)


@dataclass
class _Search:
    """The search for one source."""

    beam: BeamConfig
    prefix: tuple[int, ...]
    constraints: LexicalConstraints
    open: list[_Open]
    kept: list[Hypothesis] = field(default_factory=list)
    """The best that ended, best first, at most as many as are asked for."""
    settled: int = 0
    """How many of the kept nothing will come before, the first ones."""
    cut_off: list[_Open] = field(default_factory=list)
    """Those that were open at the greatest length."""

    def extend(self, ways: Sequence[Continuations], length: int) -> list[tuple[int, int]]:
        """Try each open hypothesis (row) as ended; keep the best ways on, as (row, token)."""
        if not self.open:
            return []
        for hypothesis, way in zip(self.open, ways, strict=True):
            self._keep(hypothesis.tokens, hypothesis.log_prob + way.end_log_prob, length)
        chosen = self._chosen(ways)
        self.open = [_Open((*self.open[r].tokens, token), value) for r, token, value in chosen]
        self._settle(length)
        if self.settled == self.beam.best:
            self.open = []
        elif length == self.beam.max_length:
            self.open, self.cut_off = [], self.open
        return [(row, token) for row, token, _ in chosen] if self.open else []

    def _chosen(self, ways: Sequence[Continuations]) -> list[tuple[int, int, float]]:
        """The ways on that stay open, as (row, token, log-probability), best first."""
        required = self.constraints.required
        reached = [each.log_prob for each in self.open]
        least = -sys.float_info.max
        if not required:
            best = max(map(operator.add, reached, (max(way.log_probs) for way in ways)))
            least = max(least, best - self.beam.within)
        possible = [
            (row, token, value)
            for row, (before, way) in enumerate(zip(reached, ways, strict=True))
            for token, log_prob in zip(way.tokens, way.log_probs, strict=True)
            if (value := before + log_prob) >= least
        ]
        if not required:
            possible.sort(key=operator.itemgetter(2), reverse=True)
            return possible[: self.beam.width]
        written = [(*self.prefix, *each.tokens) for each in self.open]
        held = self.constraints.satisfied
        return allocate_beam(
            [(row, token, value, held((*written[row], token))) for row, token, value in possible],
            self.beam.width,
        )

    def _keep(self, tokens: tuple[int, ...], log_prob: float, length: int) -> None:
        """Keep what ended, if it comes among the best and before nothing that is settled.

        What comes too late to be first is not told as second: the first of N best are the best of
        a search for fewer.
        """
        score = self.beam.score(log_prob, length)
        full = len(self.kept) == self.beam.best
        if log_prob == -math.inf or (full and score <= self.kept[-1].score):
            return
        if self.settled and score > self.kept[self.settled - 1].score:
            return
        found = self._hypothesis(tokens, log_prob, length, finished=True)
        # After its equals: what was found first stays first, however many are asked for.
        bisect.insort_right(self.kept, found, key=lambda each: -each.score)
        del self.kept[self.beam.best :]

    def _settle(self, length: int) -> None:
        """Count those of the kept that nothing open, of so many tokens, is believed to precede."""
        best = max((each.log_prob for each in self.open), default=-math.inf)
        most = self.beam.optimistic_score(best, length)
        while self.settled < len(self.kept) and most <= self.kept[self.settled].score:
            self.settled += 1

    def results(self) -> list[Hypothesis]:
        cut_off = [
            self._hypothesis(each.tokens, each.log_prob, self.beam.max_length, finished=False)
            for each in sorted(self.cut_off, key=lambda each: -each.log_prob)
        ]
        return (self.kept + cut_off)[: self.beam.best]

    def _hypothesis(
        self, tokens: tuple[int, ...], log_prob: float, length: int, *, finished: bool
    ) -> Hypothesis:
        written = self.prefix + tokens
        return Hypothesis(
            tokens=written,
            log_prob=log_prob,
            finished=finished,
            given=len(self.prefix),
            score=self.beam.score(log_prob, length),
            missing=self.constraints.missing(written),
        )
