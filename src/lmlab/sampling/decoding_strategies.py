"""The ways in which texts are found for sources: greedily, by search, by drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.limits import check_limit
from lmlab.layers.per_example_rng import per_example_generator
from lmlab.sampling.beam_search import (
    BeamConfig,
    Hypothesis,
    beam_search,
)
from lmlab.sampling.decoding import (
    GeneratedSequence,
    greedy_search,
    sample_sequences,
)
from lmlab.sampling.lexical_constraints import LexicalConstraints


class DecodingStrategy(Protocol):
    """How texts are found for sources."""

    @property
    def rows(self) -> int:
        """Texts under way for each source."""
        ...

    def find(
        self, system: Any, sources: Batch, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        """For each source what was found, best first.

        `max_lengths` are the most tokens of each text, its end included. What is drawn depends on
        the seed and on a source's own number (`sources.rows`), so that nothing of a text depends
        on what stands beside it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """The likeliest token each time."""

    rows: int = 1

    def find(
        self, system: Any, sources: Batch, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        found = greedy_search(system, len(sources), max_length=max_lengths, condition=sources)
        return [[_hypothesis(each)] for each in found]


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Beam search."""

    beam: BeamConfig = field(default_factory=lambda: BeamConfig(width=5))
    constraints: LexicalConstraints = field(default_factory=LexicalConstraints)

    @property
    def rows(self) -> int:
        return self.beam.width

    def find(
        self, system: Any, sources: Batch, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        return beam_search(
            system,
            self.beam,
            condition=sources,
            constraints=self.constraints,
            max_lengths=max_lengths,
        )


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Texts drawn from p(text | source), as they came."""

    rows: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"at least one text must be drawn, and {self.rows} came.")
        check_limit("samples", self.rows, called="the number of texts per source")

    def find(
        self, system: Any, sources: Batch, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        count, device = len(sources), sources.tokens.device
        repeated = torch.arange(count, device=device).repeat_interleave(self.rows)
        which = torch.arange(self.rows).repeat(count)
        given = sources.select(repeated)
        found = sample_sequences(
            system,
            len(given),
            max_length=[length for length in max_lengths for _ in range(self.rows)],
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            generator=per_example_generator(seed, given.rows.cpu(), which),
            condition=given,
        )
        each = iter(map(_hypothesis, found))
        return [[next(each) for _ in range(self.rows)] for _ in range(count)]


def _hypothesis(each: GeneratedSequence) -> Hypothesis:
    assert each.log_prob is not None
    return Hypothesis(
        tokens=each.tokens,
        log_prob=each.log_prob,
        finished=each.finished,
        given=each.given,
        score=each.log_prob,
    )
