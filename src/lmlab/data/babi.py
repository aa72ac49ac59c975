"""bAbI reader: stories with questions, answers and supporting facts.

Weston et al. 2015, "Towards AI-complete question answering: a set of prerequisite toy tasks",
https://arxiv.org/abs/1502.05698
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error
from lmlab.core.untrusted_input import parse_integer
from lmlab.data.lines import Errors, ReadingReport, numbered_lines
from lmlab.data.readers import Example, file_hash


@dataclass(frozen=True, kw_only=True)
class Story:
    """One bAbI question with the story sentences that precede it."""

    sentences: tuple[str, ...]
    numbers: tuple[int, ...]
    """The file's line number of each sentence; questions are numbered in the same sequence."""
    question: str
    answer: str
    supporting: tuple[int, ...]
    """Line numbers of the supporting facts."""

    def supporting_sentences(self) -> tuple[str, ...]:
        """The supporting sentences, in the order listed in the file."""
        by_number = dict(zip(self.numbers, self.sentences, strict=True))
        return tuple(by_number[number] for number in self.supporting)

    def as_text(self) -> str:
        """Story, question and answer as one text; final punctuation is a separate word."""
        return " ".join([*map(_spaced, self.sentences), _spaced(self.question), self.answer])


def _spaced(sentence: str) -> str:
    return f"{sentence[:-1].rstrip()} {sentence[-1]}" if sentence[-1:] in ".?!" else sentence


@dataclass(frozen=True, kw_only=True)
class Babi:
    """Reader of a bAbI task file: numbered lines, a new story at 1, tab-separated questions."""

    path: Path
    errors: Errors = "strict"

    def stories(self, report: ReadingReport | None = None) -> Iterator[Story]:
        """One `Story` for each question."""
        sentences: list[str] = []
        numbers: list[int] = []
        characters = 0
        lines = numbered_lines(self.path, report or ReadingReport(), self.errors)
        for place, line in lines:
            if not line:
                continue
            head, _, rest = line.partition(" ")
            number = parse_integer(head)
            if number is None:
                raise UserError(
                    f"{self.path}, line {place}: expected a number first, got {head[:40]!r}."
                )
            if number == 1:
                sentences, numbers, characters = [], [], 0
            if "\t" not in rest:
                sentences.append(rest.strip())
                numbers.append(number)
                characters += len(line)
                if characters > limit("line"):
                    subject = f"{self.path}, line {place}: the characters of a story must be"
                    raise limit_exceeded_error("line", subject)
                continue
            yield self._story(rest, place, tuple(sentences), tuple(numbers))

    def _story(
        self, line: str, place: int, sentences: tuple[str, ...], numbers: tuple[int, ...]
    ) -> Story:
        columns = [column.strip() for column in line.split("\t")]
        supporting = (
            [parse_integer(each) for each in columns[2].split()] if len(columns) == 3 else [None]
        )
        if not all(number in numbers for number in supporting):
            raise UserError(
                f"{self.path}, line {place}: expected question, answer and numbers of earlier "
                "sentences with tabs between them."
            )
        return Story(
            sentences=sentences,
            numbers=numbers,
            question=columns[0],
            answer=columns[1],
            supporting=tuple(number for number in supporting if number is not None),
        )

    def read(self, report: ReadingReport) -> Iterator[Example]:
        for story in self.stories(report):
            yield Example(story.as_text())

    def identity(self) -> str:
        return f"babi:{file_hash(self.path)}:{self.errors}"

    def files(self) -> Sequence[Path]:
        return (self.path,)
