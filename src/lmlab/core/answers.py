"""Answers to questions, with what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Something that was looked up: a document, an entity, a fact."""

    name: str
    """Which one: a document's name, an entity's, a fact as `subject, relation`."""
    text: str
    """What it says."""
    probability: float
    """How much the answer rests on it, in the system's own terms: p(document | question), say."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a question."""

    text: str
    log_prob: float | None
    """The system's own log-probability, in nats; None where it can't tell."""
    evidence: tuple[Evidence, ...] = ()
    """What was looked up for it, the surest first."""


@runtime_checkable
class Ask(Protocol):
    """Questions in words, answered in words."""

    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """At most `answers` answers to each question, the likeliest first.

        It needs the tokeniser, which `setup_tokenizer` told it.
        """
        ...
