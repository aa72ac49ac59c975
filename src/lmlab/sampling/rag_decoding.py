"""Decoding beside documents, one search for each of them: thorough and fast (RAG-Sequence).

Lewis et al. 2020 §2.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.protocols import Retrieve, RetrievedDocuments
from lmlab.sampling.beam_search import (
    BeamConfig,
    Hypothesis,
    beam_search,
)

CANDIDATES_PER_BATCH = 64
"""Candidates that are scored together, each beside all documents of its question."""


@runtime_checkable
class GeneratesFromDocuments(Retrieve, Protocol):
    """A system that writes a text beside each of the documents that it found.

    Its `writer` is what writes beside one source, steps and scores.
    """

    decodings: Any
    """Names of the ways to find likely texts, the usual one first."""

    def sources(self, questions: Batch, numbers: Tensor) -> Batch:
        """(B · K) what the writer is given: questions (B) with their documents (B, K)."""
        ...

    def given_documents(self, batch: Batch, questions: Batch, numbers: Tensor) -> Tensor:
        """(B, K, T - 1) log-probabilities of texts (B) beside each of their documents."""
        ...


class _Text(NamedTuple):
    """What a search found."""

    tokens: tuple[int, ...]
    finished: bool


@dataclass(frozen=True, kw_only=True)
class PerDocumentBeamSearch:
    """A beam search beside each document z; then the texts of all of them, ranked by Σ_z.

    Thorough: log Σ_z p(z | x) p(y | x, z), every text y scored beside every document. Fast: a
    text counts nothing beside documents whose search did not come to it, which needs no more
    passes; its log-probabilities are then too low, never too high. Given a beam as wide as the
    space thorough is exhaustive search. Cost: a search of K · width rows for each question, and
    for thorough up to K · width texts beside K documents.
    """

    thorough: bool = True
    beam: BeamConfig = field(default_factory=lambda: BeamConfig(width=5))
    documents: int = 1
    """K, as far as the size of batches goes."""

    @property
    def rows(self) -> int:
        return self.beam.width * self.documents

    def find(
        self, system: Any, sources: Batch, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        """For each question (row of `sources`) the best texts, best first."""
        beam = replace(self.beam, best=max(self.beam.best, self.beam.width))
        with evaluation_mode(system):
            found = system.retrieve(sources)
            beside = system.sources(sources, found.numbers)
        count = found.numbers.shape[1]
        lengths = [length for length in max_lengths for _ in range(count)]
        searched = beam_search(system.writer, beam, condition=beside, max_lengths=lengths)
        results = []
        for row in range(len(sources)):
            beams = searched[row * count : (row + 1) * count]
            weights = found.log_probs[row].tolist()
            if self.thorough:
                texts = list(dict.fromkeys(text for each in beams for text in map(_text, each)))
                totals = marginal_log_probs(system, texts, sources.select([row]), _row(found, row))
            else:
                texts, totals = _only_where_found(beams, weights)
            ranked = [self._hypothesis(*each) for each in zip(texts, totals, strict=True)]
            ranked.sort(key=lambda each: (not each.finished, -each.score))
            results.append(ranked[: self.beam.best])
        return results

    def _hypothesis(self, text: _Text, log_prob: float) -> Hypothesis:
        return Hypothesis(
            tokens=text.tokens,
            log_prob=log_prob,
            finished=text.finished,
            score=self.beam.score(log_prob, max(1, len(text.tokens) + text.finished)),
        )


def marginal_log_probs(
    system: Any, texts: Sequence[_Text], question: Batch, found: RetrievedDocuments
) -> list[float]:
    """log Σ_z p(z | x) p(y | x, z) of each text y for one question x, z among those found."""
    vocabulary = system.vocabulary
    totals: list[float] = []
    with evaluation_mode(system):
        for first in range(0, len(texts), CANDIDATES_PER_BATCH):
            rows = [
                [vocabulary.opening, *text.tokens, *([vocabulary.end] if text.finished else [])]
                for text in texts[first : first + CANDIDATES_PER_BATCH]
            ]
            batch = Batch.collate(rows, vocabulary.pad).to(device_of(system))
            alike = torch.zeros(len(rows), dtype=torch.int64, device=batch.tokens.device)
            each = system.given_documents(batch, question.select(alike), found.numbers[alike])
            joint = found.log_probs.double() + each.double().sum(2)
            totals += torch.logsumexp(joint, 1).tolist()
    return totals


def _only_where_found(
    beams: Sequence[Sequence[Hypothesis]], weights: Sequence[float]
) -> tuple[list[_Text], list[float]]:
    """The texts of all beams, each summed over the documents whose beam has it."""
    joint: dict[_Text, list[float]] = {}
    for weight, beam in zip(weights, beams, strict=True):
        for each in beam:
            assert each.log_prob is not None
            joint.setdefault(_text(each), []).append(weight + each.log_prob)
    return list(joint), [_log_sum(values) for values in joint.values()]


def _log_sum(values: Sequence[float]) -> float:
    most = max(values)
    if most == -math.inf:
        return most
    return most + math.log(math.fsum(math.exp(value - most) for value in values))


def _text(hypothesis: Hypothesis) -> _Text:
    return _Text(hypothesis.tokens, hypothesis.finished)


def _row(found: RetrievedDocuments, row: int) -> RetrievedDocuments:
    return RetrievedDocuments(
        numbers=found.numbers[row : row + 1], log_probs=found.log_probs[row : row + 1]
    )
