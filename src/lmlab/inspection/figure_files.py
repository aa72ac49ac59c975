"""Figure files of an inspection: SVG, PNG, an index with the captions, and one HTML page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lmlab import __version__
from lmlab.core.atomic_files import write_bytes, write_json, write_text
from lmlab.core.figure_style import PLAIN_STYLE
from lmlab.core.html import Html, TableCell, html_table, join_html, tag, visible_text
from lmlab.core.untrusted_input import read_json_object
from lmlab.plotting.figure import FIGURE_SUFFIXES, FigureSpec, FigureTable, RenderedFigure
from lmlab.plotting.html import html_page
from lmlab.plotting.notebook_figures import svg_figure
from lmlab.training.distributed import lock_output

ENLARGEMENT = 1.42
"""Page pixels per figure point: figure text comes out as large as the page's."""


def render_inspection_page(
    saved: Sequence[SavedFigure], *, runs: Sequence[str], notes: Sequence[str]
) -> str:
    """A self-contained HTML page; the same figures give the same bytes."""
    title = f"Inside {', '.join(runs)}"
    groups: dict[str, list[SavedFigure]] = {}
    for figure in saved:
        groups.setdefault(figure.run, []).append(figure)
    head = [
        tag("h1", title),
        tag("p", f"Written by lmlab {__version__}.", class_="faint"),
        *(tag("p", note) for note in notes),
    ]
    if len(groups) > 1:
        links = [tag("li", tag("a", _heading(run), href=f"#{_anchor(run)}")) for run in groups]
        head.append(tag("nav", tag("ul", *links)))
    sections = [
        tag(
            "section",
            tag("h2", _heading(run)) if len(groups) > 1 else Html(""),
            figures_html(figures),
            id=_anchor(run),
        )
        for run, figures in groups.items()
    ]
    return html_page(title, *head, *sections)


def figures_html(figures: Sequence[SavedFigure]) -> Html:
    """Figures in sequence: the model's first, then those of each sentence."""
    by_text: dict[str, list[SavedFigure]] = {}
    for figure in sorted(figures, key=lambda figure: bool(figure.text)):
        by_text.setdefault(figure.text, []).append(figure)
    return join_html(
        piece
        for text, group in by_text.items()
        for piece in (tag("h3", f"“{text}”") if text else Html(""), *map(figure_html, group))
    )


def inspection_body(figures: Sequence[SavedFigure]) -> Html:
    """The figures for a notebook, each under its title; runs and sentences are named once."""
    parts, run, text = [], "", ""
    for figure in sorted(figures, key=lambda figure: (figure.run, bool(figure.text))):
        if figure.run != run:
            parts.append(tag("h4", visible_text(figure.run)))
        if figure.text and (figure.run, figure.text) != (run, text):
            parts.append(tag("p", visible_text(f"“{figure.text}”")))
        run, text = figure.run, figure.text
        parts.append(svg_figure(figure.svg, f"{figure.title}: {figure.caption}"))
    return join_html(parts)


def figure_html(figure: SavedFigure) -> Html:
    """A figure, its caption, and its table collapsed."""
    caption: list[str] = [figure.caption]
    if figure.table is not None:
        table = html_table(figure.table.header, figure.table.rows)
        caption.append(tag("details", tag("summary", "As a table"), table))
    return tag("figure", _sized(figure), tag("figcaption", *caption))


def _sized(figure: SavedFigure) -> Html:
    """The figure at the width its text needs; scaled and scrollable on a narrow page."""
    width_match = re.match(r'<svg[^>]*? width="([\d.]+)(?:pt)?"', figure.svg)
    width = ENLARGEMENT * float(width_match[1]) if width_match else 640.0
    style = f"width:100%;max-width:{width:.0f}px;min-width:{min(0.7 * width, 640):.0f}px"
    role = f'role="img" aria-label="{escape(figure.title, quote=True)}"'
    return Html(figure.svg.replace("<svg", f'<svg {role} style="{style}"', 1))


def _heading(run: str) -> str:
    return run or "Side by side"


def _anchor(run: str) -> str:
    slug = "".join(letter if letter.isalnum() else "-" for letter in run)
    return f"run-{slug}" if run else "side-by-side"


MANIFEST = "inspection.json"
"""The index file."""
PAGE = "inspection.html"
MANIFEST_FORMAT = 1
WRITING_SECONDS = 60.0
"""Seconds to wait for another process that writes to the same folder."""


@dataclass(frozen=True, kw_only=True)
class SavedFigure:
    """A rendered figure."""

    run: str
    """The run shown; empty if there are several."""
    name: str
    """File name without extension."""
    title: str
    caption: str
    svg: str
    """The SVG source, for HTML pages."""
    text: str = ""
    """The sentence shown, if any."""
    table: FigureTable | None = None

    def as_dict(self) -> dict[str, Any]:
        """All but the SVG, for JSON."""
        record: dict[str, Any] = {
            "run": self.run,
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "text": self.text,
        }
        if self.table is not None:
            rows = [[[cell.shown, cell.value] for cell in row] for row in self.table.rows]
            record["table"] = {"header": list(self.table.header), "rows": rows}
        return record


def saved_figure(spec: FigureSpec, rendered: RenderedFigure, *, run: str) -> SavedFigure:
    """The saved form of a rendered figure."""
    return SavedFigure(
        run=run,
        name=spec.name,
        title=spec.title,
        caption=spec.caption,
        svg=rendered.svg,
        text=spec.text,
        table=spec.table,
    )


def write_figure_files(
    folder: Path,
    figures: Sequence[SavedFigure],
    rendered: Sequence[RenderedFigure],
    *,
    page: str | None = None,
    suffixes: Sequence[str] = PLAIN_STYLE.suffixes,
) -> None:
    """Write figures and their index to a folder; delete those of an earlier index."""
    with lock_output(folder, wait=WRITING_SECONDS):
        _write_files(folder, figures, rendered, page, suffixes)


def _write_files(
    folder: Path,
    figures: Sequence[SavedFigure],
    rendered: Sequence[RenderedFigure],
    page: str | None,
    suffixes: Sequence[str],
) -> None:
    earlier = {str(record.get("name", "")) for record in _records(folder)}
    for figure, content in zip(figures, rendered, strict=True):
        for suffix in suffixes:
            path = folder / f"{figure.name}{suffix}"
            if suffix == ".svg":
                write_text(path, figure.svg)
            else:
                write_bytes(path, content.pdf if suffix == ".pdf" else content.png)
    records = [figure.as_dict() for figure in figures]
    write_json(folder / MANIFEST, {"format": MANIFEST_FORMAT, "pictures": records})
    if page is not None:
        write_text(folder / PAGE, page)
    written = {f"{figure.name}{suffix}" for figure in figures for suffix in suffixes}
    old = {f"{name}{suffix}" for name in filter(_plain, earlier) for suffix in FIGURE_SUFFIXES}
    for name in old - written:
        (folder / name).unlink(missing_ok=True)


def read_figure_files(folder: Path) -> tuple[SavedFigure, ...]:
    """The figures of a folder's index; empty without a readable index."""
    figures = []
    for record in _records(folder):
        try:
            svg = (folder / f"{record['name']}.svg").read_text(encoding="utf-8")
            figures.append(_read_figure(record, svg))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # Skip a figure whose file was deleted.
    return tuple(figures)


def _read_figure(record: dict[str, Any], svg: str) -> SavedFigure:
    if not _plain(str(record["name"])) or not svg.startswith("<svg") or "<script" in svg.lower():
        raise ValueError("not a picture of ours")
    fields = {key: str(record[key]) for key in ("run", "name", "title", "caption", "text")}
    table = record.get("table")
    rows = None
    if table is not None:
        cells = tuple(tuple(TableCell(text, value) for text, value in row) for row in table["rows"])
        rows = FigureTable(header=tuple(table["header"]), rows=cells)
    return SavedFigure(svg=svg, table=rows, **fields)


def _records(folder: Path) -> list[dict[str, Any]]:
    try:
        manifest = read_json_object(folder / MANIFEST)
        records = manifest["pictures"] if int(manifest["format"]) <= MANIFEST_FORMAT else []
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return []
    return [record for record in records if isinstance(record, dict)]


def _plain(name: str) -> bool:
    """Whether a name stays inside its folder."""
    return bool(name) and all(letter.isalnum() or letter in "-_" for letter in name)
