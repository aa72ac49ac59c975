"""Question answering records: answers with evidence (document, entity, fact); `Ask` protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A retrieved item: a document, an entity, a fact."""

    name: str
    """The name of the document or entity, or a fact as `subject, relation`."""
    text: str
    """Its content."""
    probability: float
    """Its weight in the answer, in the system's own terms: p(document | question), say."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a question."""

    text: str
    log_prob: float | None
    """The system's own log-probability, in nats; None if unknown."""
    evidence: tuple[Evidence, ...] = ()
    """Retrieved evidence, the most probable first."""


@runtime_checkable
class Ask(Protocol):
    """Question answering in text."""

    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """At most `answers` answers to each question, the most probable first.

        It needs the tokenizer, given by `setup_tokenizer`.
        """
