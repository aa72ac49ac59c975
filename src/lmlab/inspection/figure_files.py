"""Figure files: SVG, PNG and an index with each figure's caption."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lmlab import __version__
from lmlab.core.atomic_files import write_bytes, write_json, write_text
from lmlab.core.untrusted_input import read_json_object
from lmlab.plotting.figure import FigureSpec, FigureTable, RenderedFigure
from lmlab.plotting.html import Html, TableCell, html_page, html_table, join_html, tag
from lmlab.training.distributed import lock_output

ENLARGEMENT = 1.42
"""Page pixels per figure point: figure text comes out as large as the page's."""


def render_inspection_page(
    shots: Sequence[SavedFigure], *, runs: Sequence[str], remarks: Sequence[str]
) -> str:
    """A self-contained HTML page; the same figures give the same bytes."""
    title = f"Inside {', '.join(runs)}"
    groups: dict[str, list[SavedFigure]] = {}
    for shot in shots:
        groups.setdefault(shot.run, []).append(shot)
    head = [
        tag("h1", title),
        tag("p", f"Written by lmlab {__version__}.", class_="faint"),
        *(tag("p", remark) for remark in remarks),
    ]
    if len(groups) > 1:
        links = [tag("li", tag("a", _heading(run), href=f"#{_anchor(run)}")) for run in groups]
        head.append(tag("nav", tag("ul", *links)))
    sections = [
        tag(
            "section",
            tag("h2", _heading(run)) if len(groups) > 1 else Html(""),
            figures_html(found),
            id=_anchor(run),
        )
        for run, found in groups.items()
    ]
    return html_page(title, *head, *sections)


def figures_html(shots: Sequence[SavedFigure]) -> Html:
    """Figures in sequence: the model's first, then those of each sentence."""
    by_text: dict[str, list[SavedFigure]] = {}
    for shot in sorted(shots, key=lambda shot: bool(shot.text)):
        by_text.setdefault(shot.text, []).append(shot)
    return join_html(
        piece
        for text, found in by_text.items()
        for piece in (tag("h3", f"“{text}”") if text else Html(""), *map(figure_html, found))
    )


def figure_html(shot: SavedFigure) -> Html:
    """A figure, its caption, and its table collapsed."""
    words: list[str] = [shot.caption]
    if shot.table is not None:
        told = html_table(shot.table.header, shot.table.rows)
        words.append(tag("details", tag("summary", "As a table"), told))
    return tag("figure", _sized(shot), tag("figcaption", *words))


def _sized(shot: SavedFigure) -> Html:
    """The figure at the width its text needs; scaled and scrollable on a narrow page."""
    found = re.match(r'<svg[^>]*? width="([\d.]+)"', shot.svg)
    wide = ENLARGEMENT * float(found[1]) if found else 640.0
    style = f"width:100%;max-width:{wide:.0f}px;min-width:{min(0.7 * wide, 640):.0f}px"
    named = f'role="img" aria-label="{escape(shot.title, quote=True)}"'
    return Html(shot.svg.replace("<svg", f'<svg {named} style="{style}"', 1))


def _heading(run: str) -> str:
    return run or "Side by side"


def _anchor(run: str) -> str:
    kept = "".join(letter if letter.isalnum() else "-" for letter in run)
    return f"run-{kept}" if run else "side-by-side"


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


def saved_figure(picture: FigureSpec, drawn: RenderedFigure, *, run: str) -> SavedFigure:
    """The saved form of a rendered figure."""
    return SavedFigure(
        run=run,
        name=picture.name,
        title=picture.title,
        caption=picture.caption,
        svg=drawn.svg,
        text=picture.text,
        table=picture.table,
    )


def write_figure_files(
    folder: Path, shots: Sequence[SavedFigure], pngs: Sequence[bytes], *, page: str | None = None
) -> None:
    """Write figures and their index to a folder; delete those of an earlier index."""
    with lock_output(folder, wait=WRITING_SECONDS):
        _write_shots(folder, shots, pngs, page)


def _write_shots(
    folder: Path, shots: Sequence[SavedFigure], pngs: Sequence[bytes], page: str | None
) -> None:
    earlier = {name for name in _listed_names(folder) if _plain(name)}
    for shot, png in zip(shots, pngs, strict=True):
        write_text(folder / f"{shot.name}.svg", shot.svg)
        write_bytes(folder / f"{shot.name}.png", png)
    listed = [shot.as_dict() for shot in shots]
    write_json(folder / MANIFEST, {"format": MANIFEST_FORMAT, "pictures": listed})
    if page is not None:
        write_text(folder / PAGE, page)
    for name in earlier - {shot.name for shot in shots}:
        for ending in ("svg", "png"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)


def read_figure_files(folder: Path) -> tuple[SavedFigure, ...]:
    """The figures of a folder's index; empty without a readable index."""
    found = []
    for record in _records(folder):
        try:
            svg = (folder / f"{record['name']}.svg").read_text(encoding="utf-8")
            found.append(_shot(record, svg))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # Skip a figure whose file was deleted.
    return tuple(found)


def _shot(record: dict[str, Any], svg: str) -> SavedFigure:
    if not _plain(str(record["name"])) or not svg.startswith("<svg") or "<script" in svg.lower():
        raise ValueError("not a picture of ours")
    fields = {key: str(record[key]) for key in ("run", "name", "title", "caption", "text")}
    table = record.get("table")
    rows = None
    if table is not None:
        cells = tuple(
            tuple(TableCell(shown, value) for shown, value in row) for row in table["rows"]
        )
        rows = FigureTable(header=tuple(table["header"]), rows=cells)
    return SavedFigure(svg=svg, table=rows, **fields)


def _records(folder: Path) -> list[dict[str, Any]]:
    try:
        told = read_json_object(folder / MANIFEST)
        records = told["pictures"] if int(told["format"]) <= MANIFEST_FORMAT else []
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return []
    return [record for record in records if isinstance(record, dict)]


def _listed_names(folder: Path) -> Iterable[str]:
    return (str(record.get("name", "")) for record in _records(folder))


def _plain(name: str) -> bool:
    """Whether a name stays inside its folder."""
    return bool(name) and all(letter.isalnum() or letter in "-_" for letter in name)
