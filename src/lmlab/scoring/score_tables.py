"""Surprisal by word of several models as one table, long (tidy) or wide, for reading-time studies.

All models score the same words: a segmentation of the text, whatever their tokenizers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property
from typing import Any, TextIO

from lmlab.core.errors import UserError, escape_csv_cell
from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord, rows_html
from lmlab.core.score import Score, ScoreKind
from lmlab.core.word_scores import Span, WordScore, word_scores

FLAGS = ("unknown", "shared")
"""Remarks on a word under one model, by their names in a wide table."""


@dataclass(frozen=True, kw_only=True)
class WordRow:
    """One word of a text under one model."""

    model: str
    kind: ScoreKind
    """Only an `exact` score is surprisal; `pseudo` is -log p of a word given those on both
    sides."""
    line: int
    """The text's line in its file, or its number, from 1."""
    position: int
    """The word's in its text, from 1."""
    word: str
    start: int
    """Characters [start, end) of the text, counted from 0."""
    end: int
    surprisal_bits: float
    surprisal_nats: float
    unknown: bool
    """Whether one of its tokens is <unk> to the model: the surprisal of *any* unknown word."""
    tokens: int
    shared: bool
    """Whether a token covers a part of it and of another word, that in which it ends being the one
    that it counts towards."""


ROW_COLUMNS = tuple(spec.name for spec in fields(WordRow))
WIDE_COLUMNS = ("line", "position", "word", "start", "end")
"""Columns of a wide table before those of the models; `flags` is the last one."""


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """One text under several models."""

    text: str
    line: int
    """Its line in a file, or its number, from 1."""
    scores: Mapping[str, Score]
    """By model, in the order given."""
    spans: Sequence[Span] = field(repr=False)
    """Characters of its words, the same for all models."""
    with_end: bool = True
    """Whether the end of the sequence is a row, where a model predicts it."""

    @cached_property
    def words(self) -> Mapping[str, list[WordScore]]:
        """The words under each model, then the end of the sequence."""
        return {model: self._words(model) for model in self.scores}

    def _words(self, model: str) -> list[WordScore]:
        try:
            words = word_scores(self.scores[model], self.spans)
        except UserError as error:
            raise UserError(f"{model}: {error}") from None
        return [word for word in words if self.with_end or not word.end_token]

    def rows(self) -> Iterator[WordRow]:
        """A row for each model and word."""
        for model, score in self.scores.items():
            for position, word in enumerate(self.words[model], 1):
                yield WordRow(
                    model=model,
                    kind=score.kind,
                    line=self.line,
                    position=position,
                    word=word.word,
                    start=word.start,
                    end=word.end,
                    surprisal_bits=word.surprisal_bits,
                    surprisal_nats=word.surprisal_nats,
                    unknown=word.unknown,
                    tokens=word.tokens,
                    shared=word.shared,
                )

    def wide_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each word, with a column of surprisal in bits for each model.

        The column of a model is named by `wide_column`. It is None where a model has no score: the
        end of the sequence under one that does not predict it. `flags` says of which models the
        word is unknown, or shares a token with another word: `unknown:ngram shared:gpt`.
        """
        by_model = {
            model: {(word.start, word.end, word.end_token): word for word in words}
            for model, words in self.words.items()
        }
        length = len(self.text)
        keys = [*((start, end, False) for start, end in self.spans), (length, length, True)]
        for position, key in enumerate(keys, 1):
            words = {model: found.get(key) for model, found in by_model.items()}
            known = [word for word in words.values() if word is not None]
            if not known:
                continue
            yield {
                **dict(zip(WIDE_COLUMNS, (self.line, position, known[0].word, *key), strict=False)),
                **{
                    wide_column(model, self.scores[model].kind): (
                        None if word is None else word.surprisal_bits
                    )
                    for model, word in words.items()
                },
                "flags": " ".join(
                    f"{flag}:{model}"
                    for flag in FLAGS
                    for model, word in words.items()
                    if word is not None and getattr(word, flag)
                ),
            }


def wide_column(model: str, kind: ScoreKind) -> str:
    """The name of a model's column in a wide table.

    A kind that is no surprisal is part of it, and a run called `word` is `model:word`.
    """
    name = f"model:{model}" if model in (*WIDE_COLUMNS, "flags") else model
    return name if kind == "exact" else f"{name} ({kind})"


@dataclass(frozen=True, kw_only=True)
class ScoreTable(NotebookRecord):
    """Texts under several models: rows by word, long or wide."""

    models: tuple[str, ...]
    texts: tuple[ScoredText, ...]

    def rows(self) -> list[WordRow]:
        """A row for each text, model and word, as `pandas.DataFrame(table.rows())` takes them.

        Rows of a text stand together, those of a model together in it.
        """
        return [row for text in self.texts for row in text.rows()]

    def wide_rows(self) -> list[dict[str, Any]]:
        """A row for each text and word, a column for each model; see `ScoredText.wide_rows`."""
        return [row for text in self.texts for row in text.wide_rows()]

    def table_rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows as pandas gets them."""
        return (vars(row) for row in self.rows())

    def html_body(self) -> Html:
        """A line for each word, with its surprisal under each model."""
        return rows_html(self.wide_rows())

    def write_csv(self, file: TextIO, *, wide: bool = False, raw: bool = False) -> None:
        """Write the rows as CSV; see `write_word_csv`."""
        write_word_csv(self.texts, file, wide=wide, raw=raw)


def write_word_csv(
    texts: Iterable[ScoredText], file: TextIO, *, wide: bool = False, raw: bool = False
) -> int:
    """Write surprisal by word as CSV, long or `wide`; returns the number of rows.

    Columns are the fields of `WordRow`, or those of `ScoredText.wide_rows`. Rows are written as the
    texts come, in constant memory.

    Unless `raw`, a word that a spreadsheet would take for a formula (it begins with =, +, - or @)
    is prefixed by an apostrophe, and control characters are escaped.
    """
    writer = csv.writer(file, lineterminator="\n")
    count = 0
    for columns, row in _cells(texts, wide=wide):
        if count == 0:  # not before the first text is scored, which may fail
            writer.writerow([name if raw else escape_csv_cell(name) for name in columns])
        writer.writerow([csv_cell(value, raw=raw) for value in row])
        count += 1
    return count


def _cells(
    texts: Iterable[ScoredText], *, wide: bool
) -> Iterator[tuple[Sequence[str], Sequence[object]]]:
    """The columns and the values of each row."""
    for text in texts:
        if wide:
            yield from (([*row], [*row.values()]) for row in text.wide_rows())
        else:
            yield from ((ROW_COLUMNS, astuple(row)) for row in text.rows())


def csv_cell(value: object, *, raw: bool) -> object:
    """A value as a cell: six decimals, booleans as 0 and 1, texts without formulas unless `raw`."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    return value if raw or not isinstance(value, str) else escape_csv_cell(value)
