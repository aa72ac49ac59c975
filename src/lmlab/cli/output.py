"""Console output: results on standard output, progress and remarks on standard error.

Control characters in texts are printed as visible escapes unless `--raw` is given. Modules of the
command line import `print` from here.
"""

from __future__ import annotations

import builtins
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from lmlab.core.errors import escape_control_characters, escape_control_characters_in_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lmlab.data.lines import ReadingReport

MAX_COLUMNS = 240
"""Table width if the output is no terminal: not folded."""
NO_ANSWER = "(no answer)"
"""Printed for an empty or missing answer; JSON has "" or an empty list."""
_RAW: ContextVar[bool] = ContextVar("raw", default=False)


def keep_raw(raw: bool) -> bool:
    """Set whether texts are printed raw (`--raw`) or with control characters escaped."""
    _RAW.set(raw)
    return raw


def printable(text: str) -> str:
    """A text with control characters escaped, unless `--raw` is given."""
    return text if _RAW.get() else escape_control_characters(text)


def one_line(text: str) -> str:
    """A text on one line: line feeds as a backslash and an n."""
    return text.replace("\n", "\\n")


def print(
    *values: object, file: TextIO | None = None, end: str = "\n", flush: bool = False
) -> None:
    """The builtin `print`, with control characters escaped."""
    builtins.print(printable(" ".join(map(str, values))), file=file, end=end, flush=flush)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    print(f"warning: {sentence}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON document; infinities and nan become null."""
    builtins.print(_json_text(value, indent=2))


def print_json_list(items: Iterable[Any]) -> None:
    """Print a JSON list item by item, in constant memory."""
    separator = "[\n"
    for item in items:
        sys.stdout.write(separator + _json_text(item))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def print_json_lines(items: Iterable[Any]) -> None:
    """Print JSON lines, each as soon as it is available."""
    for item in items:
        builtins.print(_json_text(item), flush=True)


def _json_text(value: Any, indent: int | None = None) -> str:
    """JSON text; invisible characters that JSON allows in strings are escaped too."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:  # replace non-finite numbers only if there are any
        text = json.dumps(finite(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return escape_control_characters_in_json(text)


def finite(value: Any) -> Any:
    """The value with None for every infinity or nan."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def console(*, stderr: bool = False, markup: bool = False) -> Console:
    """A console for tables and text; markup in texts is ignored unless requested."""
    from rich.console import Console

    class SafeConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            texts = (printable(item) if isinstance(item, str) else item for item in objects)
            super().print(*texts, **options)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else MAX_COLUMNS
    return SafeConsole(stderr=stderr, width=width, markup=markup, highlight=False, emoji=False)


def show_table(table: Table) -> None:
    """Print a table without truncating columns, even on a narrow screen.

    If it does not fit, it is printed without a frame, then narrower, then beyond the edge.
    """
    from rich import box

    screen = console(markup=True)
    table.title, title = None, table.title
    if _width(table, screen) > screen.width:
        table.box, table.show_edge, table.pad_edge = box.SIMPLE_HEAD, False, False
    for gap in (1, 0):  # beside the blank that the box puts between columns
        if _width(table, screen) > screen.width:
            table.padding = (0, gap, 0, 0)
    screen.width = max(screen.width, _width(table, screen))
    if title is not None:
        screen.print(title, soft_wrap=True)
    screen.print(table)


def _width(table: Table, screen: Console) -> int:
    """Width of a table if nothing is truncated."""
    from rich.measure import Measurement

    return Measurement.get(screen, screen.options.update(max_width=10_000), table).maximum


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without borders, readable by people and tools."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(header):
        table.add_column(name, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    console().print(table)


@contextmanager
def text_progress_bar(
    description: str,
    report: ReadingReport | None = None,
    size: int | None = None,
    *,
    unit: str = "tokens",
    results_follow: bool = False,
) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error; yields a function to call with the units done.

    It follows the bytes in `report` out of `size`. Silent if standard error is no terminal, or if
    results scroll on the same screen meanwhile; `results_follow` says that they come after the bar.
    """
    if not sys.stderr.isatty() or (sys.stdout.isatty() and not results_follow):
        yield lambda done: None
        return
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description} {task.fields[done]:,} " + unit),
        BarColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        # Otherwise rich would capture standard output and print it around the bar.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(escape(printable(description)), total=size, done=0)
        total = 0

        def advance(done: int) -> None:
            nonlocal total
            total += done
            read = 0 if report is None else report.bytes_read
            bar.update(task, completed=read, done=total)

        yield advance


@contextmanager
def step_progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar of counted steps on standard error, if it is a terminal.

    Yields a function of the description, the steps done and their number.
    """
    if not sys.stderr.isatty():
        yield lambda description, done, of: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(description: str, done: int, of: int) -> None:
            if description not in tasks:
                tasks[description] = bar.add_task(description, total=of)
            bar.update(tasks[description], completed=done)

        yield update


Item = TypeVar("Item")


def with_progress(items: Iterable[Item], done: Callable[[int], None]) -> Iterator[Item]:
    """Pass items on, counting each as one unit done."""
    for item in items:
        done(1)
        yield item
