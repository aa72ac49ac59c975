"""HTML builder with escaping: elements, tables, text cells, figures inside a page."""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lmlab.core.errors import escape_control_characters

MISSING_CELL = "–"
VOID_ELEMENTS = frozenset({"meta", "br"})


class Html(str):
    """A string that is HTML already."""


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """HTML element <name attributes>children</name>; plain strings are escaped, `Html` is not.

    An underscore in an attribute's name is a hyphen, and one at its end is left out (`class_`); an
    attribute without a value is left out too.
    """
    spelled_attributes = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for key, value in attributes.items()
        if value
    )
    if name in VOID_ELEMENTS:
        return Html(f"<{name}{spelled_attributes}>")
    return Html(f"<{name}{spelled_attributes}>{join_html(children)}</{name}>")


def join_html(children: Iterable[str], separator: str = "") -> Html:
    """Concatenate the pieces, escaping plain text."""
    pieces = (piece if isinstance(piece, Html) else html.escape(piece) for piece in children)
    return Html(separator.join(pieces))


@dataclass(frozen=True)
class TableCell:
    """A table cell: its text, and its numeric sort key where it has one."""

    shown: str
    value: float | None = None


def number_cell(value: float | None, digits: int = 3) -> TableCell:
    """A figure, or a dash where there is none."""
    if value is None or math.isnan(value):
        return TableCell("–")
    if math.isinf(value):
        return TableCell("∞" if value > 0 else "−∞", value)
    return TableCell(f"{value:,.{digits}f}".replace("-", "−"), value)


def html_table(header: Sequence[str], rows: Iterable[Sequence[TableCell]]) -> Html:
    """A table with sortable columns; it scrolls where it is too wide."""
    rows = list(rows)
    numeric = [any(row[column].value is not None for row in rows) for column in range(len(header))]
    header_cells = [
        tag("th", tag("button", name, type="button"), class_="number" if right else "", scope="col")
        for name, right in zip(header, numeric, strict=True)
    ]
    body = [
        tag("tr", *(_cell(cell, right) for cell, right in zip(row, numeric, strict=True)))
        for row in rows
    ]
    table = tag(
        "table", tag("thead", tag("tr", *header_cells)), tag("tbody", *body), class_="sortable"
    )
    return tag("div", table, class_="wide", tabindex="0")


def _cell(cell: TableCell, numeric: bool) -> Html:
    sort = {} if cell.value is None else {"data_sort": repr(float(cell.value))}
    return tag("td", cell.shown, class_="number" if numeric else "", **sort)


def plain_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[bool] = (),
    bold: Sequence[bool] = (),
) -> Html:
    """A table of texts without a script; columns of `numbers` are set right, `bold` rows bold."""
    right = [*numbers, *(False for _ in range(len(header) - len(numbers)))]
    classes = ["number" if number else "" for number in right]
    heads = [tag("th", n, class_=c, scope="col") for n, c in zip(header, classes, strict=True)]
    body = []
    for index, row in enumerate(rows):
        cells = (
            tag("td", visible_text(cell), class_=c) for cell, c in zip(row, classes, strict=True)
        )
        body.append(tag("tr", *cells, class_="bold" if index < len(bold) and bold[index] else ""))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", table, class_="wide")


def visible_text(text: str) -> str:
    """A text with its hidden characters as escapes; `Html` stays as it is."""
    return text if isinstance(text, Html) else escape_control_characters(text)


def cell_text(value: object) -> str:
    """A value as a short text."""
    if value is None:
        return MISSING_CELL
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell_text, value))
    return str(value)


def inline_svg(svg: str) -> Html:
    """A figure of ours, an <svg> element, with ids that are unique on a page of many."""
    mark = hashlib.blake2b(svg.encode(), digest_size=5).hexdigest()
    ids = set(re.findall(r'\bid="([^"]+)"', svg))

    def renamed(match: re.Match[str]) -> str:
        before, name, after = match.groups()
        return f"{before}{name}-{mark}{after}" if name in ids else match[0]

    return Html(re.sub(r'((?:\bid="|url\(#|href="#))([^")]+)([")])', renamed, svg))
