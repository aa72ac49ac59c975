"""Text inputs of a command: a FILE of any format, `-` for standard input, or texts.

Lines are numbered, empty ones included. Commands that print a line for each input line use `lines`;
commands that print a table use `examples`, and `warn_empty_lines` counts lines without a row.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lmlab.cli.arguments import is_file
from lmlab.cli.output import print, print_json_list, text_progress_bar, warn, with_progress
from lmlab.cli.stdin_lines import MAX_CHUNK_LINES, read_stdin_lines
from lmlab.core.errors import UserError
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.lines import ReadingReport, check_errors, is_gzip, numbered_lines
from lmlab.data.readers import Example, ExampleReader, Fasta, PlainText, TabSeparated
from lmlab.data.unknown_words import UnknownWords

STDIN = "standard input"
ONE_OF = "give exactly one of: a FILE, - for standard input, texts, --text, --file."
FILE_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".tsv", ".csv", ".fasta", ".fa", ".gz")

TextOption = Annotated[list[str] | None, typer.Option(metavar="T", help="A text; repeatable.")]
TextsOrFileArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE | - | TEXT...]",
        help="A file with one text per line, - for standard input, or texts themselves.",
    ),
]
FileOption = Annotated[
    str | None, typer.Option("--file", metavar="FILE", help="The same as FILE before.")
]

Result = TypeVar("Result")


@dataclass(kw_only=True)
class TextInput:
    """The lines of one input, read lazily."""

    name: str
    reader: Iterator[Example]
    """Yields every line with its number; one without text is `Example("", line=n)`."""
    unit: str = "line"
    """What is numbered: lines of a file, or texts of the command line."""
    size: int | None = None
    """Total bytes, if known."""
    report: ReadingReport = field(default_factory=ReadingReport)
    """The reader's progress and problems."""
    has_more: Callable[[], bool] = lambda: True
    """Whether the next line can be read without blocking."""
    count: int = 0
    """Lines yielded so far."""
    empty: int = 0
    """Lines without text so far."""
    references: int = 0
    """Lines whose second column was dropped."""
    unknown: tuple[UnknownWords, ...] = ()
    """Unknown word counters of texts and sources, set by `count_unknown_words`."""

    @property
    def lines(self) -> Iterator[Example]:
        """Every line, empty ones included; a UserError if there is none."""
        for line in self.reader:
            self.count += 1
            self.empty += not line.text
            self.report.examples += bool(line.text)
            for counter, text in zip(self.unknown, (line.text, line.condition), strict=False):
                counter.add(text or "")
            yield line
        if not self.count:
            raise UserError(f"{self.name} holds no text; give at least one line.")

    def chunks(self, size: int = MAX_CHUNK_LINES) -> Iterator[list[Example]]:
        """The lines in chunks; never waits for a pipe to fill a chunk."""
        chunk: list[Example] = []
        for line in self.lines:
            chunk.append(line)
            if len(chunk) == size or not self.has_more():
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    @property
    def examples(self) -> Iterator[Example]:
        """The lines with text, and their conditions; a UserError if there is none."""
        for line in self.lines:
            if line.text:
                yield line
        if self.empty == self.count:
            raise UserError(
                f"{self.name} holds no text, only {_counted(self.count, f'empty {self.unit}')}; "
                "give at least one word."
            )

    @property
    def texts(self) -> Iterator[str]:
        """The texts of `examples`; a UserError for pairs."""
        return (require_single_text(example, self.name) for example in self.examples)

    def count_unknown_words(
        self, tokenizer: TokenizerProtocol, source_tokenizer: TokenizerProtocol | None = None
    ) -> None:
        """Start counting unknown words of texts and sources."""
        self.unknown = tuple(
            UnknownWords(counted or tokenizer) for counted in (tokenizer, source_tokenizer)
        )

    def progress_bar(
        self, action: str, *, unit: str = "texts", results_follow: bool = False
    ) -> AbstractContextManager[Callable[[int], None]]:
        """A progress bar that follows the bytes read; see `text_progress_bar`."""
        description = f"{action} {self.name}"
        return text_progress_bar(
            description, self.report, self.size, unit=unit, results_follow=results_follow
        )

    def warn_unknown_words(self) -> None:
        """Warn if more than a few per cent of the words are unknown."""
        for counter in self.unknown:
            if sentence := counter.warning():
                warn(sentence)

    def warn_empty_lines(self) -> None:
        """Warn on standard error about lines without a row in a table."""
        if self.empty:
            print(
                f"{self.name}: {self.empty:,} of {_counted(self.count, self.unit)} "
                f"{'is' if self.empty == 1 else 'are'} empty: no row, and the numbering counts "
                f"{'it' if self.empty == 1 else 'them'}.",
                file=sys.stderr,
            )

    def warn_references(self) -> None:
        """Warn on standard error that only the first of two columns was read."""
        if self.references:
            print(
                f"{self.name}: the first column is the source; the second, of "
                f"{_counted(self.references, self.unit)}, was not read.",
                file=sys.stderr,
            )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def require_single_text(example: Example, name: str) -> str:
    """The text of an example without a condition; a UserError for a pair."""
    if example.condition is not None:
        raise UserError(f"{name} holds pairs; give a file with a text a line.")
    return example.text


def process_lines(
    lines: Iterable[Example], process: Callable[[Iterator[Example]], Iterable[Result]]
) -> Iterator[tuple[Example, Result | None]]:
    """Each line with its result, in order; None for a line without text, which is skipped.

    `process` yields one result per example, in order, and may read ahead.
    """
    waiting: deque[Example] = deque()

    def with_text() -> Iterator[Example]:
        for line in lines:
            waiting.append(line)
            if line.text:
                yield line

    yield from align_results(process(with_text()), waiting)


@contextmanager
def processed_texts(
    text_input: TextInput, action: str, process: Callable[[Iterator[str]], Iterable[Result]]
) -> Iterator[Iterator[tuple[Example, Result | None]]]:
    """Each line with the result of its text, as `process_lines`, with a progress bar."""

    def process_examples(examples: Iterator[Example]) -> Iterable[Result]:
        return process(require_single_text(example, text_input.name) for example in examples)

    with text_input.progress_bar(action) as done:
        yield with_progress(process_lines(text_input.lines, process_examples), done)


def print_results(
    results: Iterable[tuple[Example, Any]],
    show: Callable[[Iterator[Any]], None],
    *,
    empty: Mapping[str, object],
    as_json: bool,
) -> None:
    """Show results, or print a JSON record per line; `empty` is that of a line without text."""
    if as_json:
        print_json_list(
            {"line": line.line, **(empty if result is None else result.as_dict())}
            for line, result in results
        )
    else:
        show(result for _, result in results)


def align_results(
    results: Iterable[Result], waiting: deque[Example]
) -> Iterator[tuple[Example, Result | None]]:
    """Pair each result with the next waiting line with text; None for the lines before it."""
    for result in results:
        while not waiting[0].text:
            yield waiting.popleft(), None
        yield waiting.popleft(), result
    while waiting:
        yield waiting.popleft(), None


def read_texts(
    file: str | None,
    given: Sequence[str],
    errors: str,
    *,
    instead: str | None = None,
    sources: bool = False,
    plain: bool = False,
) -> TextInput:
    """The texts of `FILE`, `-` or the command line; exactly one of these.

    `instead` is the command's option for a text, named in advice. With `sources` a pair (two
    columns, or source and target in JSON) counts as its source. With `plain` the lines of a file
    are not parsed, whatever its name.
    """
    check_errors(errors)
    if (file is None) == (not given):
        raise UserError(ONE_OF)
    if file is None:
        return texts_from_options(given)
    if file == "-":
        text_input = _from_stream(sys.stdin.buffer, STDIN, errors, sources)
    else:
        path = _existing(Path(file), instead)
        text_input = _from_file(path, errors, sources=sources, plain=plain)
    if sources:
        _only_sources(text_input)
    return text_input


def read_text_arguments(
    arguments: Sequence[str], given: Sequence[str], file: str | None, errors: str
) -> TextInput:
    """The same from the arguments of `file_or_texts`; a single word is a text."""
    file, texts = file_or_texts(arguments, given, file, word_is_file=False)
    return read_texts(file, texts, errors, instead="--text")


def file_or_texts(
    arguments: Sequence[str] | None,
    given: Sequence[str] | None,
    file: str | None,
    *,
    word_is_file: bool = True,
) -> tuple[str | None, list[str]]:
    """A file, or texts: from the arguments [FILE | - | TEXT...], `--text` and `--file`.

    A single argument that is a file, or looks like a file name, is that file; else arguments are
    texts. With `word_is_file` a single ASCII word is a file name as well, so that a mistyped name
    is not scored as a text. (None, []) if nothing was given.
    """
    if sum((bool(arguments), bool(given), file is not None)) > 1:
        raise UserError(ONE_OF)
    if not arguments:
        return file, list(given or ())
    files = [argument for argument in arguments if argument == "-" or _names_file(argument)]
    if len(arguments) == 1:
        [only] = arguments
        a_word = word_is_file and only.isascii() and len(only.split()) == 1
        return (only, []) if files or a_word else (None, [only])
    if files:
        raise UserError(
            f"a file is given alone, got {files[0]} among {len(arguments)} arguments; give one "
            "FILE, or texts by --text."
        )
    return None, list(arguments)


def _names_file(argument: str) -> bool:
    """Whether an argument is a file, or looks like the name of one."""
    looks_like_file = argument.lower().endswith(FILE_SUFFIXES) or "/" in argument
    return is_file(argument) or (looks_like_file and not any(map(str.isspace, argument)))


def texts_from_options(given: Sequence[str], name: str = "the command line") -> TextInput:
    """Texts of the command line, numbered in order."""
    lines = (
        Example(text if text.strip() else "", line=number) for number, text in enumerate(given, 1)
    )
    return TextInput(name=name, reader=lines, unit="text")


def _existing(path: Path, instead: str | None) -> Path:
    if not path.exists():
        or_text = "" if instead is None else f", or give a text by {instead}"
        raise UserError(f"there is no file {path}; check the path{or_text}.")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file with a text a line.")
    return path


def _from_file(path: Path, errors: str, *, sources: bool, plain: bool) -> TextInput:
    if not path.is_file():  # a named pipe, /dev/fd/63: can be read only once
        return _from_stream(path.open("rb"), str(path), errors, sources)
    from lmlab.data.load_corpus import reader_for

    checked, report = check_errors(errors), ReadingReport()
    reader = PlainText(path=path, errors=checked) if plain else reader_for(path, checked)
    lines: Iterator[Example]
    if sources and isinstance(reader, (PlainText, TabSeparated)):
        numbered = numbered_lines(path, report, checked, strip=" \r\n")
        lines = (Example(text, line=number) for number, text in numbered)
    else:
        lines = _all_lines(reader, report)
    size = None if is_gzip(path) else path.stat().st_size
    return TextInput(name=path.name, reader=lines, size=size, report=report)


def _all_lines(reader: ExampleReader, report: ReadingReport) -> Iterator[Example]:
    """A reader's examples, with the lines it skips as examples without text."""
    if isinstance(reader, Fasta):  # a sequence spans several lines: none is skipped between two
        yield from reader.read(report)
        return
    done = 0
    for example in reader.read(report):
        assert example.line is not None, "readers of files number their lines"
        yield from (Example("", line=number) for number in range(done + 1, example.line))
        yield example
        done = example.line
    yield from (Example("", line=number) for number in range(done + 1, report.lines + 1))


def _from_stream(stream: Any, name: str, errors: str, sources: bool) -> TextInput:
    """The lines of a pipe; `sources` keeps a tab at either end, marking an empty side."""
    report = ReadingReport()
    around = " \r\n" if sources else None
    waiting: deque[tuple[int, str]] = deque()

    def lines() -> Iterator[Example]:
        for chunk in read_stdin_lines(stream, name, report, errors):
            waiting.extend(chunk)
            while waiting:
                number, text = waiting.popleft()
                yield Example(text.strip(around), line=number)

    return TextInput(name=name, reader=lines(), report=report, has_more=lambda: bool(waiting))


def _only_sources(texts: TextInput) -> None:
    """Replace pairs by their sources; count the dropped references."""

    def sources(lines: Iterator[Example]) -> Iterator[Example]:
        for line in lines:
            source, reference = _columns(line, texts.name)
            texts.references += reference is not None
            yield Example(source, line=line.line)

    texts.reader = sources(texts.reader)


def _columns(line: Example, name: str) -> tuple[str, str | None]:
    """Source and reference of a line; the reference is optional."""
    if line.condition is not None:
        return line.condition, line.text
    columns = [column.strip() for column in line.text.split("\t")]
    if len(columns) > 2:
        raise UserError(
            f"{name}, line {line.line}: expected a source, or a source, a tab and a reference, got "
            f"{len(columns)} columns; keep the first, as in cut -f1."
        )
    return columns[0], columns[1] if len(columns) == 2 else None
