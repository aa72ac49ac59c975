"""Elements of an objective figure (boxes, texts, mask squares, pixels) and how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR

DARK_TEXT_COLOUR = "#1d2430"
"""Text colour on a coloured background, on light and dark pages."""
CELL_BORDER_COLOUR = "#8c959f88"
ALLOWED_COLOUR = COLOURS[0]
ALLOWED_PALE_COLOUR = "#b9caf1"
STYLE_COLOURS: dict[str, tuple[str, str]] = {
    "plain": ("none", CELL_BORDER_COLOUR),
    "hidden": ("#f8d0b0", COLOURS[1]),
    "mask": ("#dcd3f6", COLOURS[4]),
    "changed": ("#f3cbe3", COLOURS[3]),
    "other": ("#c5e8ee", COLOURS[6]),
    "answer": ("none", COLOURS[2]),
    "target": ("#bfe6cf", COLOURS[2]),
    "number": ("none", "none"),
}
"""Fill and edge of each cell style: one colour, one meaning, in every figure."""
SQUARE_STYLES: dict[str, dict[str, Any]] = {
    "attends": {"facecolors": ALLOWED_COLOUR, "edgecolors": ALLOWED_COLOUR},
    "attends pale": {"facecolors": ALLOWED_PALE_COLOUR, "edgecolors": ALLOWED_PALE_COLOUR},
    "masked": {"facecolors": "none", "edgecolors": CELL_BORDER_COLOUR},
}


@dataclass(frozen=True, kw_only=True)
class LayoutBox:
    """A rounded rectangle, in inches from the top left corner."""

    left: float
    top: float
    width: float
    height: float
    style: str


@dataclass(frozen=True, kw_only=True)
class LayoutText:
    """A text at a point, in inches from the top left corner."""

    left: float
    top: float
    text: str
    size: float = 10.0
    alignment: str = "center"
    colour: str = FOREGROUND_COLOUR
    faint: bool = False
    rotation: float = 0.0
    bold: bool = False
    label: str = ""
    """What the text is, where it is a figure's title."""


@dataclass(kw_only=True)
class FigureLayout:
    """Positions of all elements; grows while they are placed."""

    boxes: list[LayoutBox] = field(default_factory=list)
    words: list[LayoutText] = field(default_factory=list)
    squares: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Centre and side of the squares of each style."""
    pixels: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Corner, side and grey value of each image pixel, 0 black and 1 white."""
    width: float = 0.0
    height: float = 0.0

    def extend_to(self, right: float, bottom: float) -> None:
        """Grow to at least this size."""
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def square(self, style: str, left: float, top: float, side: float) -> None:
        centre = (left + side / 2, top + side / 2, side)
        self.squares.setdefault(style, []).append(centre)
        self.extend_to(left + side, top + side)


def draw_layout(figure: Figure, layout: FigureLayout) -> None:
    """Draw all elements on one axes in inches, y downwards."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    axes.axis("off")
    for box in layout.boxes:
        fill, edge = STYLE_COLOURS[box.style]
        axes.add_patch(
            FancyBboxPatch(
                (box.left, box.top),
                box.width,
                box.height,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=fill,
                edgecolor=edge,
                linewidth=1.1 if box.style != "plain" else 0.8,
                clip_on=False,
            )
        )
    for style, squares in layout.squares.items():
        _draw_squares(axes, style, squares)
    if layout.pixels:
        _draw_pixels(axes, layout.pixels)
    for words in layout.words:
        _draw_text(axes, words)


def _draw_squares(axes: Axes, style: str, squares: Sequence[tuple[float, float, float]]) -> None:
    x, y, sides = zip(*squares, strict=True)
    sizes = [(0.8 * side * 72) ** 2 for side in sides]
    axes.scatter(
        x, y, s=sizes, marker="s", linewidths=0.6, label=style, clip_on=False,
        **SQUARE_STYLES[style],
    )  # fmt: skip


def _draw_pixels(axes: Axes, pixels: Sequence[tuple[float, float, float, float]]) -> None:
    shapes = [Rectangle((left, top), side, side) for left, top, side, _ in pixels]
    greys = [(min(max(grey, 0.0), 1.0),) * 3 for *_, grey in pixels]
    axes.add_collection(
        PatchCollection(
            shapes, facecolors=greys, edgecolors=CELL_BORDER_COLOUR, linewidths=0.4, label="pixels"
        )
    )


def _draw_text(axes: Axes, words: LayoutText) -> None:
    slanted: dict[str, Any] = {"rotation": words.rotation, "rotation_mode": "anchor"}
    axes.text(
        words.left,
        words.top,
        words.text,
        fontsize=words.size,
        ha=words.alignment,
        va="center" if not words.rotation else "center_baseline",
        color=words.colour,
        alpha=0.62 if words.faint else 1.0,
        fontweight="bold" if words.bold else "normal",
        label=words.label,
        **(slanted if words.rotation else {}),
    )
