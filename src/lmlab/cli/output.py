"""Results on standard output; progress and remarks on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lmlab.data.corpus import Split

WIDE = 240
"""Columns where nobody looks at a screen: a table in a file is not folded."""
NO_ANSWER = "(no answer was found)"
"""What stands where an answer would."""


def print_json(value: Any) -> None:
    """One JSON document; a number that JSON has no word for (an infinity) becomes null."""
    print(_written(value, indent=2))


def print_json_list(items: Iterable[Any]) -> None:
    """One JSON document, a list, written item by item: it never stands in memory."""
    separator = "[\n"
    for item in items:
        sys.stdout.write(separator + _written(item))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def print_json_lines(items: Iterable[Any]) -> None:
    """A JSON object a line, each as soon as it comes."""
    for item in items:
        print(_written(item), flush=True)


def _written(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:  # only now is it worth looking at every number
        return json.dumps(finite(value), ensure_ascii=False, indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """The value with None for every number that is infinite or none at all."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def console(*, stderr: bool = False, markup: bool = False) -> Console:
    """Where tables and text are written; texts are shown as they are unless markup is read in."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, width=width, markup=markup, highlight=False, emoji=False)


def show_table(table: Table) -> None:
    """A table with its columns as wide as they need: on a narrow screen no figure may vanish.

    Where it does not fit it goes without its frame, and after that beyond the edge.
    """
    from rich import box

    screen = console(markup=True)
    table.title, title = None, table.title
    if _width(table, screen) > screen.width:
        table.box, table.show_edge, table.pad_edge = box.SIMPLE_HEAD, False, False
    screen.width = max(screen.width, _width(table, screen))
    if title is not None:
        screen.print(title, soft_wrap=True)
    screen.print(table)


def _width(table: Table, screen: Console) -> int:
    """Columns of the screen that a table takes where nothing is cut short."""
    from rich.measure import Measurement

    return Measurement.get(screen, screen.options.update(max_width=10_000), table).maximum


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without lines, which can be read by people and cut by tools."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(header):
        table.add_column(name, no_wrap=place == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


@contextmanager
def scoring_bar(
    what: str, split: Split | None = None, size: int | None = None, *, results_follow: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while texts are scored; gives what is told of each batch's tokens.

    Silent where nobody looks, and where results run down the screen meanwhile, which are progress
    enough; `results_follow` says that they come only when the bar is gone.
    """
    if not sys.stderr.isatty() or (sys.stdout.isatty() and not results_follow):
        yield lambda tokens: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description} {task.fields[scored]:,} tokens"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
        # Or rich would take what belongs on standard output and write it around the bar.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(what, total=size, scored=0)
        scored = 0

        def told(tokens: int) -> None:
            nonlocal scored
            scored += tokens
            read = 0 if split is None else split.report.bytes_read
            bar.update(task, completed=read, scored=scored)

        yield told
