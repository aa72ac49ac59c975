"""Segmentations of texts into words: by spaces, by a regular expression, or given line by line."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.word_scores import Span, spans_by_pattern, spans_by_spaces, spans_of_words
from lmlab.data.lines import ReadingReport, numbered_lines
from lmlab.data.readers import Example

FORMS = ("spaces", "column", "file:PATH", "regex:PATTERN")
"""What names a segmentation on the command line; `column` is one of files alone."""


class Segmentation(Protocol):
    """The words of texts, which are asked for in order."""

    def spans(self, text: str, line: int) -> list[Span]:
        """The characters of each word of a text, and the text's line, counted from 1."""


class BySpaces:
    """Words between white space."""

    def spans(self, text: str, line: int) -> list[Span]:
        return spans_by_spaces(text)


@dataclass(frozen=True)
class ByPattern:
    """Words are the matches of a regular expression, and what is between them."""

    pattern: re.Pattern[str]

    def spans(self, text: str, line: int) -> list[Span]:
        return spans_by_pattern(text, self.pattern)


class GivenWords:
    """The words of each text as given: by a list, or the lines of a file.

    `lines` are the words of line 1, 2, …; the lines of a file that have no text have no words.
    """

    def __init__(self, lines: Iterable[str | Sequence[str]], name: str) -> None:
        self.name = name
        """What the words are called in errors."""
        self._lines = enumerate(lines, 1)

    def spans(self, text: str, line: int) -> list[Span]:
        for number, given in self._lines:
            words = given.split() if isinstance(given, str) else given
            if number == line:
                return _located_spans(text, words, f"{self.name}, line {line}")
            if any(word.strip() for word in words):
                raise UserError(
                    f"{self.name}, line {number}: there are words, but no text in that line of the "
                    "input; line them up again."
                )
        raise UserError(
            f"{self.name} ends before line {line}, which has a text; give the words of each line."
        )


class ColumnWords:
    """The words of each text in a second column: text, tab, words separated by spaces."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, list[str]]] = deque()

    def texts(self, lines: Iterable[Example], name: str) -> Iterator[Example]:
        """The lines without their second column, which is kept until their words are wanted."""
        for line in lines:
            text, tab, words = (part.strip() for part in line.text.partition("\t"))
            if line.text and not (text and words):
                raise UserError(
                    f"{name}, line {line.line}: expected a text, a tab and its words separated by "
                    f"spaces, got {'no tab' if not words and not tab else 'one column'} in "
                    f"{line.text[:40]!r}."
                )
            if "\t" in words:
                columns = line.text.count("\t") + 1
                raise UserError(
                    f"{name}, line {line.line}: expected two columns, a text and its words, got "
                    f"{columns}; keep two, as in cut -f1,2."
                )
            if text:
                assert line.line is not None, "the lines of a file are numbered"
                self._waiting.append((line.line, words.split()))
            yield replace(line, text=text)

    def spans(self, text: str, line: int) -> list[Span]:
        number, words = self._waiting.popleft()
        assert number == line, "texts are scored in the order of their lines"
        return _located_spans(text, words, f"line {line}")


def _located_spans(text: str, words: Iterable[str], place: str) -> list[Span]:
    try:
        return spans_of_words(text, words)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def make_segmentation(words_by: Any) -> Segmentation:
    """The segmentation that a user names, or gives as the words of each text.

    A name is `spaces`, `file:PATH` or `regex:PATTERN`; a compiled pattern is taken as well.
    """
    if isinstance(words_by, re.Pattern):
        return ByPattern(words_by)
    if not isinstance(words_by, str):
        if not isinstance(words_by, Iterable):
            raise UserError(
                f"words_by must be {', '.join(FORMS)} or the words of each text, got "
                f"{type(words_by).__name__}."
            )
        return GivenWords(words_by, "words_by")
    form, colon, value = words_by.partition(":")
    if form == "regex" and colon:
        return ByPattern(_compiled(value))
    if form == "file" and colon:
        return GivenWords(_file_lines(Path(value)), value)
    if words_by == "column":
        raise UserError(
            "column is for a FILE of the command line; give the words of each text as a list."
        )
    if words_by != "spaces":
        if Path(words_by).is_file():
            raise UserError(f"a file of words is named file:PATH; write file:{words_by}.")
        raise unknown_name("segmentation into words", words_by, FORMS)
    return BySpaces()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"{pattern!r} is not a regular expression: {error}.") from None


def _file_lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise UserError(f"there is no file {path} of words; check the path.")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; give the words of each line, separated by spaces.")
    return (text for _, text in numbered_lines(path, ReadingReport()))
