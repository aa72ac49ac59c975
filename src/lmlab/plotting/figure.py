"""Figure specification: name, caption and drawing function, rendered to SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from lmlab.plotting.canvas import (
    as_png,
    as_svg,
    canvas,
    drawn_extent,
)
from lmlab.plotting.fonts import (
    use_installed_fonts,
    warn_missing_glyphs,
)
from lmlab.plotting.html import TableCell


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """A table next to a figure, where text says more than marks."""

    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureSpec:
    """One figure of a run, or of several side by side."""

    name: str
    """File name of its files, without extension."""
    title: str
    caption: str
    """One or two sentences on how to read it."""
    draw: Callable[[Figure], None]
    """Draws on an empty figure of `width` × `height` inches; labels may extend beyond its edge."""
    width: float = 7.0
    height: float = 3.0
    text: str = ""
    """The sentence it shows, where it shows one."""
    table: FigureTable | None = None


@dataclass(frozen=True, kw_only=True)
class RenderedFigure:
    """A rendered figure."""

    svg: str
    png_bytes: bytes
    """The PNG."""
    missing_glyphs: str = ""
    """Characters that the PNG shows as boxes, because no installed font has them."""

    @property
    def png(self) -> bytes:
        """The PNG; warns, once, where it shows characters as boxes."""
        warn_missing_glyphs(self.missing_glyphs)
        return self.png_bytes


def render_figure(picture: FigureSpec) -> RenderedFigure:
    """Render a figure; its name makes its ids unique on a page."""
    with canvas(picture.name, width=picture.width, height=picture.height) as figure:
        picture.draw(figure)
        boxes = use_installed_fonts(figure)
        box = drawn_extent(figure)
        return RenderedFigure(
            svg=as_svg(figure, box), png_bytes=as_png(figure, box), missing_glyphs=boxes
        )


def numbered_name(name: str, place: int, of: int) -> str:
    """`surprisal-2`, or `surprisal` where it is the only one."""
    return f"{name}-{place + 1}" if of > 1 else name


def join_remarks(parts: Sequence[str]) -> str:
    """Join remarks, skipping empty ones."""
    return " ".join(part.strip() for part in parts if part.strip())


def standalone_svg(svg: str) -> str:
    """An SVG as a standalone file: text dark on light pages and light on dark ones."""
    style = (
        "<style>svg { color: #1d2430; } "
        "@media (prefers-color-scheme: dark) { svg { color: #e3e7ee; } }</style>"
    )
    head, mark, body = svg.partition(">")
    return f"{head}{mark}\n {style}{body}"
