"""Results in notebooks: HTML for what a cell returns, pandas tables.

A record that inherits `NotebookRecord` defines `table_rows`, and `html_body` where a table of them
is not what a reader wants to see. `Records` does the same for a list of them.

Text is inherited from the notebook's theme and marks are translucent, so that the same HTML reads
well on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, TypeGuard, TypeVar, overload

from lmlab.core.errors import UserError
from lmlab.core.html import Html, cell_text, join_html, plain_table, tag, visible_text

if TYPE_CHECKING:
    import pandas

Item = TypeVar("Item")

STYLE = """
.lmlab { line-height: 1.5; }
.lmlab table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.3em 0; }
.lmlab .wide { overflow-x: auto; }
.lmlab th, .lmlab td { text-align: left !important; padding: 0.2em 1em 0.2em 0.4em;
  border-bottom: 1px solid rgb(128 128 128 / 0.35); vertical-align: baseline; max-width: 44em; }
.lmlab td.number, .lmlab th.number { text-align: right !important; white-space: nowrap; }
.lmlab tr.bold td { font-weight: 600; }
.lmlab .faint { color: color-mix(in srgb, currentColor 72%, transparent); font-size: 0.9em; }
.lmlab ul { margin: 0.3em 0; padding-left: 1.3em; }
.lmlab .score { margin: 0.25em 0 0.6em; }
.lmlab .token { display: inline-block; padding: 0 0.2em; margin: 0.08em 0.05em;
  border-radius: 3px; white-space: pre; background: rgb(224 106 34 / calc(var(--s) * 0.75)); }
.lmlab .token.unknown { text-decoration: underline wavy; text-underline-offset: 3px; }
.lmlab figure { margin: 0.8em 0; overflow-x: auto; }
.lmlab figure svg { display: block; max-width: none; height: auto; }
.lmlab .serious, .lmlab .mild { border-left: 4px solid #c0392b; padding-left: 0.7em;
  margin: 0.6em 0; }
.lmlab .mild { border-color: #c9a227; }
"""
MAX_ITEMS, MAX_ROWS = 20, 100
"""Records of a list, and rows of a table, that are shown; `to_pandas` has all."""


class NotebookRecord:
    """A result that a notebook shows as HTML and that pandas reads as a table."""

    number_column: ClassVar[str] = ""
    """The column of `Records.to_pandas` that says which record of the list a row is of."""

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """Rows of a tidy table: a value for each column by its name."""
        return [scalar_fields(self)]

    def html_body(self) -> Html:
        """What a notebook shows."""
        return rows_html(list(self.table_rows()))

    def html_notes(self) -> Sequence[str]:
        """Sentences below it."""
        return ()

    def to_html(self) -> Html:
        """A fragment of HTML with its style; all text in it is escaped."""
        return notebook_html(self.html_body(), self.html_notes())

    def _repr_html_(self) -> str:
        return str(self.to_html())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a `DataFrame`; needs pandas (the extra `tables`)."""
        return data_frame(self.table_rows())


class Records(list[Item]):
    """A list of results, with HTML in a notebook and a table of all rows in pandas."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Records[Item]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Item | Records[Item]:
        """A record, or a list of some of them that shows itself alike."""
        if isinstance(index, slice):
            return Records(super().__getitem__(index))
        return super().__getitem__(index)

    def table_rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows of all records, in order."""
        for number, record in enumerate(self, 1):
            if not isinstance(record, NotebookRecord):
                yield scalar_fields(record)
                continue
            column = record.number_column
            for row in record.table_rows():
                known = not column or row.get(column) is not None
                yield row if known else {column: number} | dict(row) | {column: number}

    def to_html(self) -> Html:
        """A fragment of HTML with its style: the first records below each other, and how many more
        there are; one table of those that show a table themselves."""
        shown = self[:MAX_ITEMS]
        records = [record for record in shown if shows_more_than_rows(record)]
        if records:
            parts = [record.html_body() for record in records]
            notes = dict.fromkeys(note for record in records for note in record.html_notes())
            if len(self) > len(shown):
                parts.append(more_html(len(self) - len(shown)))
            return notebook_html(join_html(parts), list(notes))
        return notebook_html(rows_html(list(self.table_rows())))

    def _repr_html_(self) -> str:
        return str(self.to_html())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows of all records as a `DataFrame`; needs pandas (the extra `tables`)."""
        return data_frame(self.table_rows())


def shows_more_than_rows(record: object) -> TypeGuard[NotebookRecord]:
    """Whether a record's HTML is not just its rows."""
    defined = getattr(type(record), "html_body", NotebookRecord.html_body)
    return defined is not NotebookRecord.html_body


def notebook_html(body: Html, notes: Iterable[str] = ()) -> Html:
    """A fragment with its style, and notes below it."""
    items = [tag("li", visible_text(note)) for note in notes]
    below = [tag("ul", *items, class_="faint")] if items else []
    return tag("div", tag("style", Html(STYLE)), body, *below, class_="lmlab")


def rows_html(rows: Sequence[Mapping[str, Any]]) -> Html:
    """A table of the first rows, numbers set right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[cell_text(row.get(name)) for name in columns] for row in rows[:MAX_ROWS]]
    numbers = [_are_numbers(row.get(name) for row in rows) for name in columns]
    table = plain_table([name.replace("_", " ") for name in columns], cells, numbers=numbers)
    hidden = len(rows) - MAX_ROWS
    return join_html([table, more_html(hidden)]) if hidden > 0 else table


def _are_numbers(values: Iterable[object]) -> bool:
    kinds = {type(value) for value in values} - {type(None)}
    return bool(kinds) and kinds <= {int, float}


def more_html(count: int) -> Html:
    """That there are more records than are shown."""
    return tag("div", f"… and {count:,} more", class_="faint")


def scalar_fields(record: object) -> dict[str, Any]:
    """The fields of a record that fit a cell."""
    if not is_dataclass(record) or isinstance(record, type):
        return {"value": record}
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    kinds = (str, int, float, type(None), Path)
    return {name: value for name, value in values.items() if isinstance(value, kinds)}


def data_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """A `DataFrame` of rows; a UserError where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise UserError("to_pandas needs pandas; pip install 'lmlab[tables]'.") from None
    return pandas.DataFrame([dict(row) for row in rows])
