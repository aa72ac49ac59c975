"""Rows of the files that `score`, `encode`, `translate` and `fill` write: one flat record each.

Rows of `score --per-word` are `WordRow`, the schema of `lmlab score --csv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from lmlab.core.score import ScoreKind

Row = Any
"""A dataclass below, or the `WordRow` of `scoring/score_tables.py`."""


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One text under one model."""

    model: str
    kind: ScoreKind
    line: int
    log_prob: float
    """In nats; with --mean the mean over all tokens."""
    low: float | None
    """Bounds of the log-probability, where it is an interval."""
    high: float | None
    tokens: int
    characters: int
    unknown: int
    """Tokens that are <unk> to the model."""
    source: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class VectorRow:
    """One text as a vector."""

    line: int
    truncated: bool
    text: str
    vector: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class TranslationRow:
    """One translation of a text; an empty one, its numbers nan, where there is none."""

    line: int
    rank: int
    """From 1, the best."""
    text: str
    log_prob: float
    score: float
    """What translations are ranked by."""
    tokens: int
    finished: bool
    truncated_tokens: int
    """Tokens at the end of the source that the model did not read."""
    source: str


@dataclass(frozen=True, kw_only=True)
class FillRow:
    """One answer for one mask of a text."""

    line: int
    mask: int
    """Number of the mask in its text, from 1."""
    rank: int
    """From 1, the best; answers of several masks that were filled jointly share it."""
    answer: str
    log_prob: float
    """In nats: of the answer, or of all answers of the rank where masks are filled jointly."""
    text: str
    """The text with its masks, or filled where they are filled jointly."""


def columns_of(row_class: type) -> tuple[str, ...]:
    """The names of a row's fields, in order."""
    return tuple(spec.name for spec in fields(row_class))
