"""Question answering with evidence, by `Ask` models or RAG; exchange of documents and facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from lmlab.core.answers import Answer, Ask, Evidence
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.limits import check_limit
from lmlab.core.retrieval_protocols import WithDocuments, WithFacts
from lmlab.core.system import System
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import group_by_length
from lmlab.knowledge.load_knowledge import load_knowledge
from lmlab.retrieval.dense_index import DenseIndex
from lmlab.retrieval.documents import Documents
from lmlab.sampling.beam_search import BeamConfig, Hypothesis
from lmlab.sampling.decoding import EncodedSources
from lmlab.sampling.decoding_strategies import BeamSearch, DecodingStrategy, Greedy, Sampling
from lmlab.sampling.generation_options import ANSWER_BEAM_WIDTH, ANSWER_TOKENS, AnswerOptions
from lmlab.sampling.rag_decoding import DocumentState, GeneratesFromDocuments, PerDocumentBeamSearch

BEAM_METHODS = ("thorough", "fast", "beam")
"""The methods with a beam."""
QUESTION_TOKENS_PER_BATCH = 8192
"""Tokens of questions in a batch, times the hypotheses of each."""


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """A question and its answers, the most probable first."""

    question: str
    answers: tuple[Answer, ...]

    @property
    def text(self) -> str:
        """The most probable answer."""
        return self.answers[0].text if self.answers else ""

    def as_dict(self) -> dict[str, object]:
        """For JSON, with the probability of each answer and its logarithm."""
        return {
            "question": self.question,
            "answers": [
                {**asdict(answer), "probability": answer_probability(answer)}
                for answer in self.answers
            ],
        }


def answer_probability(answer: Answer) -> float | None:
    """p(answer | question); None if the system does not give it."""
    return None if answer.log_prob is None else math.exp(answer.log_prob)


@dataclass(frozen=True, kw_only=True)
class QuestionAnswerer(AnswerOptions):
    """Question answering with one system.

    A system that generates answers (RAG) is searched: `method` is one of its decoding methods, by
    default the first. Any other system answers by its `ask`.
    """

    system: Ask
    tokenizer: TokenizerProtocol

    def __post_init__(self) -> None:
        if self.answers < 1:
            raise UserError(f"the number of answers must be 1 or more, got {self.answers}.")
        check_limit("beam", self.answers, called="the number of answers")
        generator = self.generator
        if generator is None:
            options = {"method": self.method, "beam": self.beam, "max-length": self.max_length}
            for name in (name for name, value in options.items() if value is not None):
                raise UserError(f"{name} does not apply to this system; remove it.")
        elif self.method is not None and self.method not in generator.decoding_methods:
            raise unknown_name("method of this system", self.method, generator.decoding_methods)
        else:
            self._check_decoding(self._method(generator))

    def _check_decoding(self, method: str) -> None:
        if self.beam is not None and method not in BEAM_METHODS:
            raise UserError(f"beam does not apply to the method {method}; remove it.")
        for name, value in (("beam", self.beam), ("max-length", self.max_length)):
            if value is not None and value < 1:
                raise UserError(f"{name} must be 1 or more, got {value}.")
        check_limit("beam", self.beam or 1, called="the beam width")
        check_limit("length", self.max_length or 1, called="the maximum length")
        if method == "greedy" and self.answers > 1:
            raise UserError(
                f"answers must be 1 for the method greedy, got {self.answers}; give 1, or "
                "another method."
            )

    @property
    def generator(self) -> GeneratesFromDocuments | None:
        """The system, if its answers are decoded; None if they are given by its own `ask`."""
        return self.system if isinstance(self.system, GeneratesFromDocuments) else None

    def ask(self, chunks: Iterable[Sequence[str]]) -> Iterator[AnsweredQuestion]:
        """Answers to questions that arrive in chunks, in input order."""
        number = 0
        for questions in chunks:
            for question in questions:
                number += 1
                if not question.strip():
                    raise UserError(f"question {number} is empty; remove it.")
            generator = self.generator
            yield from (
                self._ask_system(questions)
                if generator is None
                else self._generate(generator, questions)
            )

    def _ask_system(self, questions: Sequence[str]) -> Iterator[AnsweredQuestion]:
        with evaluation_mode(self.system):
            results = self.system.ask(questions, answers=self.answers)
        for question, answers in zip(questions, results, strict=True):
            yield AnsweredQuestion(question=question, answers=tuple(answers))

    def _generate(
        self, generator: GeneratesFromDocuments, questions: Sequence[str]
    ) -> Iterator[AnsweredQuestion]:
        """Answers decoded from the states of the questions, which have the retrieved documents."""
        rows = [self._row(generator, question) for question in questions]
        strategy = self._strategy(generator)
        answers: dict[int, tuple[Answer, ...]] = {}
        budget = max(1, QUESTION_TOKENS_PER_BATCH // strategy.rows)
        for group in group_by_length([len(row) for row in rows], budget):
            batch = Batch.collate(
                [rows[index] for index in group],
                generator.vocabulary.pad,
                rows=[index + 1 for index in group],
            )
            encoded = EncodedSources.encode(generator, batch.to(device_of(generator)))
            assert isinstance(encoded.state, DocumentState)
            lengths = [self.max_length or ANSWER_TOKENS] * len(group)
            decoded = strategy.decode(generator, encoded, lengths, self.seed)
            evidence = generator.evidence(encoded.state.retrieved)
            for index, hypotheses, documents in zip(group, decoded, evidence, strict=True):
                answers[index] = self._answers(hypotheses, documents)
        for index, question in enumerate(questions):
            yield AnsweredQuestion(question=question, answers=answers[index])

    def _answers(
        self, hypotheses: Sequence[Hypothesis], evidence: tuple[Evidence, ...]
    ) -> tuple[Answer, ...]:
        return tuple(
            Answer(
                text=self.tokenizer.decode(list(hypothesis.tokens)),
                log_prob=hypothesis.log_prob,
                evidence=evidence,
            )
            for hypothesis in hypotheses[: self.answers]
        )

    def _method(self, generator: GeneratesFromDocuments) -> str:
        return self.method or generator.decoding_methods[0]

    def _strategy(self, generator: GeneratesFromDocuments) -> DecodingStrategy:
        method = self._method(generator)
        if method == "greedy":
            return Greedy()
        if method == "sample":
            return Sampling(rows=self.answers)
        width = ANSWER_BEAM_WIDTH if self.beam is None else self.beam
        beam = BeamConfig(width=width, best=self.answers, max_length=10 * ANSWER_TOKENS)
        if method == "beam":
            return BeamSearch(beam=beam)
        return PerDocumentBeamSearch(
            thorough=method == "thorough", beam=beam, documents=generator.retrieved
        )

    def _row(self, generator: GeneratesFromDocuments, question: str) -> list[int]:
        """The ids of a question between special tokens; one that is too long is an error."""
        vocabulary = generator.vocabulary
        ends = [] if vocabulary.end is None else [vocabulary.end]
        row = [vocabulary.bos, *self.tokenizer.encode(question), *ends]
        generator.check_condition_length(len(row))
        return row


S = TypeVar("S", bound=System)


def with_documents(
    system: S, documents: Documents, vectors: Tensor | None = None, index: DenseIndex | None = None
) -> S:
    """The system with another document store; a UserError if it has none.

    `vectors` (N, width) are the documents' embeddings by this system, if already computed, and
    `index` an approximate index over them.
    """
    if not isinstance(system, WithDocuments):
        raise UserError(
            "--documents and --index do not apply to this system, which can't change its "
            "documents; remove them."
        )
    return system.with_documents(documents, vectors=vectors, index=index)


def with_facts(system: S, knowledge: str | Path | None, edits: Sequence[tuple[str, str, str]]) -> S:
    """The system with other facts in its memory; a UserError if it has none."""
    if not isinstance(system, WithFacts):
        raise UserError(
            "--knowledge and --fact apply only to a system with a memory of facts (fae); "
            "remove them."
        )
    return system.with_facts(edits, None if knowledge is None else load_knowledge(knowledge))
