"""Scores of the same texts by several models, side by side, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import tee
from typing import Generic, TypeVar

from lmlab.core.errors import UserError
from lmlab.core.score import Score

Text = TypeVar("Text")
TextScorer = Callable[[Iterator[Text]], Iterator[Score]]
"""Scores of a stream of texts, in order; it may read ahead."""


class _Source(Generic[Text]):
    """Texts, and the error that ended them, which is of no model."""

    def __init__(self, texts: Iterator[Text]) -> None:
        self.texts = texts
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[Text]:
        try:
            yield from self.texts
        except UserError as error:
            self.error = error
            raise


def score_side_by_side(
    scorers: Mapping[str, TextScorer[Text]], texts: Iterator[Text]
) -> Iterator[dict[str, Score]]:
    """The scores of each text by model.

    Each scorer reads ahead as far as it does by itself, and the texts between the one that is
    furthest and the one that is least far are held. An error of one of several models names it.
    """
    source = _Source(texts)
    streams = [
        _named(name if len(scorers) > 1 else "", scorer, copy, source)
        for (name, scorer), copy in zip(scorers.items(), tee(source, len(scorers)), strict=True)
    ]
    for scores in zip(*streams, strict=True):
        yield dict(zip(scorers, scores, strict=True))


def _named(
    name: str, scorer: TextScorer[Text], texts: Iterator[Text], source: _Source[Text]
) -> Iterator[Score]:
    try:
        yield from scorer(texts)
    except UserError as error:
        if not name or error is source.error:
            raise
        raise UserError(f"{name}: {error}") from error
