"""HTML built from small pieces; whatever is not already HTML is escaped, always."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lmlab.diagnostics.style import SCRIPT, STYLE

VOID = frozenset({"meta", "br"})


class Html(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """<name attributes>children</name>; plain strings are escaped, `Html` is taken as it is.

    An underscore in an attribute's name is a hyphen, and one at its end is left out (`class_`); an
    attribute without a value is left out too.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for key, value in attributes.items()
        if value
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[str], separator: str = "") -> Html:
    """The pieces one after the other, escaped where they are plain text."""
    pieces = (piece if isinstance(piece, Html) else html.escape(piece) for piece in children)
    return Html(separator.join(pieces))


@dataclass(frozen=True)
class Cell:
    """What a table shows, and the number it is sorted by where that is no text."""

    shown: str
    value: float | None = None


def number(value: float | None, digits: int = 3) -> Cell:
    """A figure, or a dash where there is none."""
    if value is None or math.isnan(value):
        return Cell("–")
    if math.isinf(value):
        return Cell("∞" if value > 0 else "−∞", value)
    return Cell(f"{value:,.{digits}f}".replace("-", "−"), value)


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Html:
    """A table whose columns sort when their heads are clicked; it scrolls where it is too wide."""
    rows = list(rows)
    numeric = [any(row[place].value is not None for row in rows) for place in range(len(header))]
    heads = [
        tag("th", tag("button", name, type="button"), class_="number" if right else "", scope="col")
        for name, right in zip(header, numeric, strict=True)
    ]
    body = [
        tag("tr", *(_cell(cell, right) for cell, right in zip(row, numeric, strict=True)))
        for row in rows
    ]
    drawn = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body), class_="sortable")
    return tag("div", drawn, class_="wide", tabindex="0")


def _cell(cell: Cell, right: bool) -> Html:
    sort = {} if cell.value is None else {"data_sort": repr(float(cell.value))}
    return tag("td", cell.shown, class_="number" if right else "", **sort)


def page(title: str, *sections: Html) -> str:
    """A whole page that needs no other file: style and script are inside."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    body = tag("body", tag("main", *sections), tag("script", Html(SCRIPT)))
    return f'<!doctype html>\n<html lang="en">\n{head}\n{body}\n</html>\n'
