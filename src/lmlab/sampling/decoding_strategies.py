"""Decoding strategies given encoded sources: greedy search, beam search, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lmlab.core.errors import UserError
from lmlab.core.limits import check_limit
from lmlab.core.protocols import Decoder
from lmlab.inference.decoding import GeneratedSequence
from lmlab.layers.per_example_rng import per_example_generator
from lmlab.sampling.beam_search import BeamConfig, Hypothesis, beam_search
from lmlab.sampling.decoding import EncodedSources, greedy_search, sample_sequences
from lmlab.sampling.lexical_constraints import LexicalConstraints


class DecodingStrategy(Protocol):
    """A strategy that decodes texts from encoded sources."""

    @property
    def rows(self) -> int:
        """Hypotheses per source at a time."""
        ...

    def decode(
        self, system: Decoder, sources: EncodedSources, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source, best first.

        `max_lengths` are the maximum lengths in tokens, the end included. Samples depend on the
        seed and on a source's own number (`sources.batch.rows`), not on the rest of the batch.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Greedy search: the most probable token at every step."""

    rows: int = 1

    def decode(
        self, system: Decoder, sources: EncodedSources, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        generated = greedy_search(system, len(sources), max_length=max_lengths, sources=sources)
        return [[_hypothesis(sequence)] for sequence in generated]


@dataclass(frozen=True, kw_only=True)
class BeamSearch:
    """Beam search."""

    beam: BeamConfig = field(default_factory=lambda: BeamConfig(width=5))
    constraints: LexicalConstraints = field(default_factory=LexicalConstraints)

    @property
    def rows(self) -> int:
        return self.beam.width

    def decode(
        self, system: Decoder, sources: EncodedSources, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        return beam_search(
            system,
            self.beam,
            encoded=sources,
            constraints=self.constraints,
            max_lengths=max_lengths,
        )


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Samples of p(text | source), unranked."""

    rows: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UserError(f"the number of samples must be 1 or more, got {self.rows}.")
        check_limit("samples", self.rows, called="the number of texts per source")

    def decode(
        self, system: Decoder, sources: EncodedSources, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        count, device = len(sources), sources.batch.tokens.device
        repeated = torch.arange(count, device=device).repeat_interleave(self.rows)
        sample_numbers = torch.arange(self.rows).repeat(count)
        forked = sources.select(repeated)
        samples = sample_sequences(
            system,
            len(forked),
            max_length=[length for length in max_lengths for _ in range(self.rows)],
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            generator=per_example_generator(seed, forked.batch.rows.cpu(), sample_numbers),
            sources=forked,
        )
        hypotheses = iter(map(_hypothesis, samples))
        return [[next(hypotheses) for _ in range(self.rows)] for _ in range(count)]


def _hypothesis(sequence: GeneratedSequence) -> Hypothesis:
    assert sequence.log_prob is not None
    return Hypothesis(
        tokens=sequence.tokens,
        log_prob=sequence.log_prob,
        finished=sequence.finished,
        given=sequence.given,
        score=sequence.log_prob,
    )
