"""bAbI reader: stories with questions, answers and supporting facts.

Weston et al. 2015, "Towards AI-complete question answering: a set of prerequisite toy tasks",
https://arxiv.org/abs/1502.05698
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error
from lmlab.core.untrusted_input import parse_integer
from lmlab.data.lines import ReadingReport, numbered_lines
from lmlab.data.readers import Example, FileReader


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


class Babi(FileReader):
    """Reader of a bAbI task file: numbered lines, a new story at 1, tab-separated questions."""

    format = "babi"

    def stories(self, report: ReadingReport | None = None) -> Iterator[Story]:
        """One `Story` for each question."""
        sentences: list[str] = []
        numbers: list[int] = []
        characters = 0
        lines = numbered_lines(self.path, report or ReadingReport(), self.errors)
        for line_number, line in lines:
            if not line:
                continue
            head, _, rest = line.partition(" ")
            number = parse_integer(head)
            if number is None:
                raise UserError(
                    f"{self.path}, line {line_number}: expected a number first, got {head[:40]!r}."
                )
            if number == 1:
                sentences, numbers, characters = [], [], 0
            if "\t" not in rest:
                sentences.append(rest.strip())
                numbers.append(number)
                characters += len(line)
                if characters > limit("line"):
                    subject = f"{self.path}, line {line_number}: the characters of a story must be"
                    raise limit_exceeded_error("line", subject)
                continue
            yield self._story(rest, line_number, tuple(sentences), tuple(numbers))

    def _story(
        self, line: str, line_number: int, sentences: tuple[str, ...], numbers: tuple[int, ...]
    ) -> Story:
        columns = [column.strip() for column in line.split("\t")]
        supporting = (
            [parse_integer(field) for field in columns[2].split()] if len(columns) == 3 else [None]
        )
        if not all(number in numbers for number in supporting):
            raise UserError(
                f"{self.path}, line {line_number}: expected question, answer and numbers of "
                "earlier sentences with tabs between them."
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
