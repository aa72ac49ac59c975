"""Corpus file readers: plain text, JSON lines, FASTA, parallel files, TSV; streams of examples.

A reader is a small frozen record of a file's path and format. Nothing is read until `read` is
called; each call is a new pass in constant memory.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Protocol

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error
from lmlab.core.untrusted_input import parse_json
from lmlab.data.lines import Errors, ReadingReport, numbered_lines


@dataclass(frozen=True, slots=True)
class Mention:
    """Entity mention: a character span of a text that names an entity."""

    start: int
    """The first character."""
    end: int
    """The character after the last."""
    entity: str
    """The entity's name in its knowledge base."""


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a corpus: a text, optionally with its source and mentions."""

    text: str
    """The text itself, stripped."""
    condition: str | None = None
    """The condition of the text: the source sentence of a pair."""
    name: str | None = None
    """Optional name: a FASTA identifier."""
    mentions: tuple[Mention, ...] = ()
    """Annotated entity mentions, from left to right, without overlap."""
    location: str | None = field(default=None, compare=False)
    """File and line of a text with mentions, if it has any, for error messages."""
    line: int | None = field(default=None, compare=False)
    """Line in the file, from 1; for a FASTA sequence that of its name. None without a file."""


class ExampleReader(Protocol):
    """A source of examples that can be read repeatedly."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        """A new pass over the examples, with its counts added to `report`."""

    def identity(self) -> str:
        """A string that changes when the examples change."""

    def files(self) -> Sequence[Path]:
        """The files it reads; empty for generated texts."""


@dataclass(frozen=True, kw_only=True)
class FileReader:
    """Base class of the readers of a single file."""

    format: ClassVar[str]
    path: Path
    errors: Errors = "strict"

    def identity(self) -> str:
        return f"{self.format}:{file_hash(self.path)}:{self.errors}"

    def files(self) -> Sequence[Path]:
        return (self.path,)


class LineReader(FileReader):
    """Base class of the readers whose examples are single lines, so that a file can be divided."""

    strip: ClassVar[str | None] = None
    """The characters stripped at both ends of a line; all white space by default."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        return self.read_lines(
            numbered_lines(self.path, report, self.errors, strip=self.strip), report
        )

    def read_lines(
        self, lines: Iterable[tuple[int, str]], report: ReadingReport
    ) -> Iterator[Example]:
        """The examples of some numbered lines of the file."""
        raise NotImplementedError


class PlainText(LineReader):
    """One sentence per line; for contiguous text the `Layout` joins the lines again."""

    format = "text"

    def read_lines(
        self, lines: Iterable[tuple[int, str]], report: ReadingReport
    ) -> Iterator[Example]:
        for number, text in lines:
            if text:
                yield Example(text, line=number)


class JsonLines(LineReader):
    """One JSON object per line: `text` or `sentence`, or the two sides of a pair.

    The sides are `source` and `target`; an object with both is read as a pair, whatever else it
    holds. A text may have `mentions` of entities, a list of [start, end, entity] by characters.
    """

    format = "jsonl"

    def read_lines(
        self, lines: Iterable[tuple[int, str]], report: ReadingReport
    ) -> Iterator[Example]:
        for number, line in lines:
            if not line:
                continue
            example = self._example(line, number, report)
            if example is None:
                continue
            if example.text and example.condition != "":
                yield example
            else:
                report.empty_rows += 1

    def _example(self, line: str, number: int, report: ReadingReport) -> Example | None:
        try:
            example = _json_example(line)
            location = f"{self.path}, line {number}" if example.mentions else None
            return replace(example, location=location, line=number)
        except ValueError as error:
            if self.errors == "strict":
                raise UserError(f"{self.path}, line {number}: {error}.") from None
            report.bad_rows += 1
            return None


def _json_example(line: str) -> Example:
    try:
        row = parse_json(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"expected a JSON object, but {error.msg} (column {error.colno})"
        ) from None
    except ValueError as error:
        raise ValueError(f"expected a JSON object, but {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    match read_fields(row):
        case [source, target]:
            return Example(_json_text(row, target), condition=_json_text(row, source))
        case [key]:
            return Example(_json_text(row, key), mentions=_json_mentions(row, key))
    keys = ", ".join(map(repr, row)) or "none"
    raise ValueError(f"expected 'text', 'sentence', or 'source' and 'target'; its keys are {keys}")


def read_fields(row: Mapping[str, object]) -> tuple[str, ...]:
    """The fields of a JSON object that a corpus uses: both sides of a pair, or a text."""
    if "source" in row and "target" in row:
        return "source", "target"
    return next(((key,) for key in ("text", "sentence") if key in row), ())


def _json_mentions(row: dict[str, object], key: str) -> tuple[Mention, ...]:
    """Parse `mentions`, a list of [start, end, entity] in characters of the unstripped text."""
    listed, text = row.get("mentions", []), str(row[key])
    if not isinstance(listed, list):
        raise ValueError(f"expected a list in 'mentions', got {type(listed).__name__}")
    last_end, mentions, cut = 0, [], len(text) - len(text.lstrip())
    for item in listed:
        match item:
            case [int(start), int(end), str(entity)] if last_end <= start < end <= len(text):
                mentions.append(Mention(max(0, start - cut), end - cut, entity))
                last_end = end
            case _:
                raise ValueError(
                    "expected mentions as [start, end, entity] inside the text, from left to "
                    f"right without overlap, got {item!r}"
                )
    return tuple(mentions)


def _json_text(row: dict[str, object], key: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise ValueError(f"expected a string in {key!r}, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key!r} holds half of a surrogate pair, which is no character") from None
    return value.strip()


class Fasta(FileReader):
    """FASTA: named sequences of letters, a line `>name …` followed by lines of letters."""

    format = "fasta"

    def read(self, report: ReadingReport) -> Iterator[Example]:
        name: str | None = None
        first_line = letters = 0
        pieces: list[str] = []
        for number, line in numbered_lines(self.path, report, self.errors):
            if line.startswith(">"):
                if name is not None:
                    yield from _fasta_example(name, pieces, first_line, report)
                name, pieces, first_line, letters = line[1:].strip(), [], number, 0
            elif line and not line.startswith(";"):
                if name is None:
                    raise UserError(
                        f"{self.path}, line {number}: letters before the first '>' line; a FASTA "
                        "file names each sequence first."
                    )
                pieces.append("".join(line.split()))
                letters += len(pieces[-1])
                if letters > limit("line"):
                    subject = f"{self.path}, line {first_line}: the letters of a sequence"
                    raise limit_exceeded_error("line", f"{subject} must be")
        if name is not None:
            yield from _fasta_example(name, pieces, first_line, report)


def _fasta_example(
    name: str, pieces: list[str], line: int, report: ReadingReport
) -> Iterator[Example]:
    if pieces:
        yield Example("".join(pieces), name=name, line=line)
    else:
        report.bad_rows += 1


@dataclass(frozen=True, kw_only=True)
class ParallelFiles:
    """Parallel corpus in two line-aligned files: the source and its translation."""

    source: Path
    target: Path
    errors: Errors = "strict"

    def read(self, report: ReadingReport) -> Iterator[Example]:
        sources = numbered_lines(self.source, report, self.errors)
        targets = numbered_lines(self.target, report, self.errors)
        for source, target in zip_longest(sources, targets):
            if source is None or target is None:
                raise self._unequal(sources, targets, source, target)
            if source[1] and target[1]:
                yield Example(target[1], condition=source[1], line=source[0])
            elif source[1] or target[1]:
                # Counted as a pair, so its empty side is not counted as a line again.
                report.empty_rows += 1
                report.empty_lines -= 1

    def _unequal(
        self,
        sources: Iterator[tuple[int, str]],
        targets: Iterator[tuple[int, str]],
        source: tuple[int, str] | None,
        target: tuple[int, str] | None,
    ) -> UserError:
        shorter = self.source if source is None else self.target
        rest, last = (targets, target) if source is None else (sources, source)
        assert last is not None
        total = last[0]
        for total, _ in rest:  # noqa: B007  (only the last number is wanted)
            pass
        longer = self.target if source is None else self.source
        return UserError(
            f"parallel files must have as many lines as each other: {shorter} has {last[0] - 1:,}, "
            f"{longer} has {total:,}; line them up again."
        )

    def identity(self) -> str:
        return f"parallel:{file_hash(self.source)}:{file_hash(self.target)}:{self.errors}"

    def files(self) -> Sequence[Path]:
        return (self.source, self.target)


class TabSeparated(LineReader):
    """Parallel corpus in two columns: source, tab, target."""

    format = "tsv"
    strip = " \r\n"
    """Leading and trailing tabs are kept: they mark an empty side."""

    def read_lines(
        self, lines: Iterable[tuple[int, str]], report: ReadingReport
    ) -> Iterator[Example]:
        for number, line in lines:
            columns = [column.strip() for column in line.strip().split("\t")]
            if not any(columns):
                continue
            if len(columns) == 2 and all(columns):
                yield Example(columns[1], condition=columns[0], line=number)
            elif len(columns) == 1 and "\t" in line:
                report.empty_rows += 1
            elif self.errors == "strict":
                raise UserError(
                    f"{self.path}, line {number}: expected two columns with a tab between them "
                    f"(source, target), got {len([column for column in columns if column])}."
                )
            else:
                report.bad_rows += 1


@dataclass(frozen=True)
class ChainedReaders:
    """Concatenation of readers: the files of a folder."""

    readers: tuple[ExampleReader, ...]

    def read(self, report: ReadingReport) -> Iterator[Example]:
        for reader in self.readers:
            yield from reader.read(report)

    def identity(self) -> str:
        return "several:" + "|".join(reader.identity() for reader in self.readers)

    def files(self) -> Sequence[Path]:
        return tuple(path for reader in self.readers for path in reader.files())


@dataclass(frozen=True)
class GeneratedExamples:
    """Examples from a function: generated languages, lists in memory."""

    make: Callable[[], Iterable[Example]]
    """Called once per pass; must return the same examples each time."""
    name: str
    """Name, version and seed: everything that determines the examples."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        yield from self.make()

    def identity(self) -> str:
        return f"generated:{self.name}"

    def files(self) -> Sequence[Path]:
        return ()


def file_hash(path: Path) -> str:
    """Hash of a file's bytes, cached by the file's size and modification time."""
    try:
        state = path.stat()
        return _file_hash(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error


@functools.lru_cache(maxsize=4096)
def _file_hash(path: Path, size: int, changed: int) -> str:
    del size, changed  # only part of the cache key: a changed file is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
