"""Inspection page: figures with captions as HTML, in the style of the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from lmlab import __version__
from lmlab.inspection.figure_files import SavedFigure
from lmlab.plotting.html import (
    Html,
    html_page,
    html_table,
    join_html,
    tag,
)

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
