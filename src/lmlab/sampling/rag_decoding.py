"""RAG-Sequence decoding (Lewis et al. 2020 §2.5): a beam search per document, thorough or fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.answers import Evidence
from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import Decoder
from lmlab.core.retrieval_protocols import Retrieve, RetrievedDocuments
from lmlab.core.state import State
from lmlab.core.system_protocols import StepSystem
from lmlab.sampling.beam_search import BeamConfig, Hypothesis, beam_search
from lmlab.sampling.decoding import EncodedSources

CANDIDATES_PER_BATCH = 64
"""Candidates scored in one batch, each with all documents of its question."""


@runtime_checkable
class DocumentState(State, Protocol):
    """The state of a system that generates from documents."""

    @property
    def retrieved(self) -> RetrievedDocuments:
        """The documents of each question."""
        ...

    @property
    def inner(self) -> State:
        """The states of the document decoder, those of one question side by side."""
        ...

    @property
    def sources(self) -> Batch:
        """The sources of the document decoder: question and document."""
        ...


@runtime_checkable
class GeneratesFromDocuments(Retrieve, StepSystem, Protocol):
    """Retrieval-augmented generation: texts given a question and each retrieved document.

    Its states are `DocumentState`s.
    """

    @property
    def retrieved(self) -> int:
        """The number of documents that it retrieves for a question."""
        ...

    @property
    def decoding_methods(self) -> tuple[str, ...]:
        """Names of its decoding methods, the default first."""
        ...

    @property
    def document_decoder(self) -> Decoder:
        """What it generates with, conditioned on one source: a question and a document."""
        ...

    def evidence(self, retrieved: RetrievedDocuments) -> list[tuple[Evidence, ...]]:
        """The retrieved documents as evidence, the most probable first."""
        ...

    def log_probs_given_documents(self, batch: Batch, questions: Batch, numbers: Tensor) -> Tensor:
        """(B, K, T - 1) log-probabilities of texts (B) given each of their documents."""
        ...


class _Text(NamedTuple):
    """The text of a hypothesis."""

    tokens: tuple[int, ...]
    finished: bool


@dataclass(frozen=True, kw_only=True)
class PerDocumentBeamSearch:
    """RAG-Sequence decoding: one beam search per document z, candidates ranked by Σ_z.

    Thorough: log Σ_z p(z | x) p(y | x, z), every text y scored given every document. Fast: a text
    has probability 0 given documents whose beam does not contain it, which needs no more passes;
    log-probabilities are then lower bounds. With a beam as wide as the space, thorough is
    exhaustive search. Cost: a search of K · width rows per question, and for thorough up to K ·
    width texts given K documents.
    """

    thorough: bool = True
    beam: BeamConfig = field(default_factory=lambda: BeamConfig(width=5))
    documents: int = 1
    """K, the documents per question, for the batch size."""

    @property
    def rows(self) -> int:
        return self.beam.width * self.documents

    def decode(
        self, system: Decoder, sources: EncodedSources, max_lengths: Sequence[int], seed: int
    ) -> list[list[Hypothesis]]:
        """The best texts of each question, best first."""
        beam = replace(self.beam, best=max(self.beam.best, self.beam.width))
        state = sources.state
        assert isinstance(system, GeneratesFromDocuments) and isinstance(state, DocumentState)
        retrieved = state.retrieved
        count = retrieved.numbers.shape[1]
        lengths = [length for length in max_lengths for _ in range(count)]
        encoded = EncodedSources(batch=state.sources, state=state.inner)
        document_beams = beam_search(
            system.document_decoder, beam, encoded=encoded, max_lengths=lengths
        )
        results = []
        for row in range(len(sources)):
            beams = document_beams[row * count : (row + 1) * count]
            weights = retrieved.log_probs[row].tolist()
            if self.thorough:
                texts = list(dict.fromkeys(_text(one) for beam in beams for one in beam))
                question = sources.batch.select([row])
                totals = marginal_log_probs(
                    system, texts, question, retrieved.select(torch.tensor([row]))
                )
            else:
                texts, totals = _fast_marginals(beams, weights)
            ranked = list(map(self._hypothesis, texts, totals))
            ranked.sort(key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
            results.append(ranked[: self.beam.best])
        return results

    def _hypothesis(self, text: _Text, log_prob: float) -> Hypothesis:
        return Hypothesis(
            tokens=text.tokens,
            log_prob=log_prob,
            finished=text.finished,
            score=self.beam.apply_length_penalty(
                log_prob, max(1, len(text.tokens) + text.finished)
            ),
        )


def marginal_log_probs(
    system: GeneratesFromDocuments,
    texts: Sequence[_Text],
    question: Batch,
    retrieved: RetrievedDocuments,
) -> list[float]:
    """Marginal log Σ_z p(z | x) p(y | x, z) of each text y, given one question x."""
    vocabulary = system.vocabulary
    end = [] if vocabulary.end is None else [vocabulary.end]
    totals: list[float] = []
    with evaluation_mode(system):
        for first in range(0, len(texts), CANDIDATES_PER_BATCH):
            rows = [
                [vocabulary.bos, *text.tokens, *(end if text.finished else [])]
                for text in texts[first : first + CANDIDATES_PER_BATCH]
            ]
            batch = Batch.collate(rows, vocabulary.pad).to(device_of(system))
            same_question = torch.zeros(len(rows), dtype=torch.int64, device=batch.tokens.device)
            log_probs = system.log_probs_given_documents(
                batch, question.select(same_question), retrieved.numbers[same_question]
            )
            joint = retrieved.log_probs.double() + log_probs.double().sum(2)
            totals += torch.logsumexp(joint, 1).tolist()
    return totals


def _fast_marginals(
    beams: Sequence[Sequence[Hypothesis]], weights: Sequence[float]
) -> tuple[list[_Text], list[float]]:
    """The texts of all beams, each summed over the documents whose beam has it."""
    joint: dict[_Text, list[float]] = {}
    for weight, beam in zip(weights, beams, strict=True):
        for hypothesis in beam:
            assert hypothesis.log_prob is not None
            joint.setdefault(_text(hypothesis), []).append(weight + hypothesis.log_prob)
    return list(joint), [_log_sum(values) for values in joint.values()]


def _log_sum(values: Sequence[float]) -> float:
    maximum = max(values)
    if maximum == -math.inf:
        return maximum
    return maximum + math.log(math.fsum(math.exp(value - maximum) for value in values))


def _text(hypothesis: Hypothesis) -> _Text:
    return _Text(hypothesis.tokens, hypothesis.finished)
