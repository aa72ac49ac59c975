"""Multi-hop question answering with a fine-tuned CogQA and its paragraphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from lmlab.core.answers import Answer, Evidence
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.models.cogqa import CogQA
from lmlab.sampling.question_answering import AnsweredQuestion, QuestionAnswerer
from lmlab.tasks.finetuned_model import FinetunedModel
from lmlab.tasks.multihop.answer_selection import (
    MultihopAnswer,
    answer_questions,
)
from lmlab.tasks.multihop.multihop_rows import MultihopQuestion
from lmlab.tasks.multihop.node_inputs import NodeEncoder
from lmlab.tasks.multihop.paragraph_store import (
    load_paragraphs,
    start_entities,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class MultihopModel(FinetunedModel):
    """CogQA with the paragraphs of its run."""

    has_graph: ClassVar[bool] = True
    system: CogQA
    common: tuple[str, ...] = ()
    """Names that are common question words rather than entities."""

    @property
    def base(self) -> System:
        return self.system.base

    @cached_property
    def paragraphs(self) -> Mapping[str, str]:
        """The paragraphs of the training data, by entity."""
        return load_paragraphs(self.path)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {name.lower(): name for name in self.paragraphs}

    @cached_property
    def _encoder(self) -> NodeEncoder:
        reader = self.system.reader
        return NodeEncoder(self.tokenizer, reader.vocabulary, reader.longest)

    def answer(self, question: str) -> MultihopAnswer:
        """The answer to a bare question about entities in the run's paragraphs."""
        return self.predict_with_details([{"question": question}])[0]

    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The answer to each question (`Ask`); its evidence are the hops with their clues."""
        if answers > 1:
            raise UserError(
                f"answers must be 1 for the task {self.task.name}, which gives one answer to a "
                f"question, got {answers}."
            )
        rows = [{"question": question} for question in questions]
        return [
            [_with_evidence(each)] if each.answer else []
            for each in self.predict_with_details(rows)
        ]

    def ask_stream(
        self, chunks: Iterable[Sequence[str]], **options: Any
    ) -> Iterator[AnsweredQuestion]:
        for name in ("documents", "knowledge", "facts"):
            if options.pop(name, None):
                raise UserError(
                    f"{name} does not apply to the task {self.task.name}, which uses the "
                    "paragraphs of its run; use lmlab predict for rows with paragraphs."
                )
        return QuestionAnswerer(system=self, tokenizer=self.tokenizer, **options).ask(chunks)

    def check(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for number, row in enumerate(rows, start=1):
            self._question(number, row)

    def predict_with_details(self, rows: Sequence[Mapping[str, Any]]) -> list[MultihopAnswer]:
        """The answer to each row, of which only question, start and paragraphs are used.

        Without `start` entities are found in the question, without `paragraphs` those of the run
        are used.
        """
        questions = [self._question(number, row) for number, row in enumerate(rows, start=1)]
        return answer_questions(self.system, self._encoder, questions)

    def _question(self, number: int, row: Mapping[str, Any]) -> MultihopQuestion:
        text = row.get("question")
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"row {number} of {self.task.name} needs a question.")
        own = row.get("paragraphs")
        if own is not None and not isinstance(own, Mapping):
            raise UserError(
                f"row {number} of {self.task.name}: paragraphs must be an object of texts."
            )
        paragraphs = self.paragraphs if own is None else own
        start = row.get("start")
        if start is None:
            names = self._names if own is None else {name.lower(): name for name in own}
            start = start_entities(text, names, self.common)
        if not start:
            raise UserError(
                f"the question {text!r} names no entity that has a paragraph; give start and "
                "paragraphs in a row, or ask about an entity of the training data."
            )
        return MultihopQuestion(text=text, start=tuple(map(str, start)), paragraphs=paragraphs)


def _with_evidence(answer: MultihopAnswer) -> Answer:
    """An answer whose evidence are the hops of its path."""
    probabilities = answer.graph.step_probabilities()
    evidence = tuple(
        Evidence(name=f"{origin} → {target}", text=clue, probability=probabilities[origin, target])
        for (origin, target), (_, clue) in zip(answer.path, answer.evidence, strict=True)
    )
    return Answer(text=answer.answer, log_prob=math.log(answer.probability), evidence=evidence)
