"""Layout of an objective figure: clean text, masked and input tokens, targets, attention masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unicodedata import east_asian_width

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from lmlab.objective_figures.figure_contents import (
    AttentionMaskGrid,
    CellPanel,
    ObjectiveContents,
    TokenCell,
)
from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR, FigureSpec, printable_name

EM_INCHES = 10 / 72
"""Height of a cell's text in inches."""
MAX_WIDTH_INCHES = 11.6
"""Most inches across before columns and matrices wrap."""
WORD_ROW_INCHES, NUMBER_ROW_INCHES = 0.31, 0.2
"""Inches between lines of tokens, or of small numbers."""
MAX_CELL_INCHES, MIN_CELL_INCHES = 0.25, 0.13
"""Cell size of a matrix in inches, with few positions and with many."""
GRID_WIDTH_INCHES = {1: 4.5, 2: 4.2, 3: 3.0}
"""Inches for the cells of each matrix, by number of matrices, before they shrink."""
MIN_IMAGE_INCHES, PIXEL_INCHES = 0.3, 0.13
"""Inches of an image of few pixels, and per pixel of a larger one."""
MAX_WORD_LENGTH = 14
"""Most characters of a word."""
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
STYLE_MEANINGS = {
    "hidden": "hidden from the place that is asked",
    "mask": "a symbol fed instead",
    "changed": "another word fed instead",
    "other": "words of another text",
    "target": "asked",
    "answer": "fed, and not seen where it is asked",
    "sees": "may see, and predicts",
    "sees pale": "may see; nothing is predicted here",
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

    def square(self, look: str, left: float, top: float, side: float) -> None:
        middle = (left + side / 2, top + side / 2, side)
        self.squares.setdefault(look, []).append(middle)
        self.extend_to(left + side, top + side)


def objective_figure_spec(
    showing: ObjectiveContents, *, name: str, title: str, note: str = ""
) -> FigureSpec:
    """The figure of one text under an objective."""
    sheet = arrange_contents(showing, title=title, note=note)
    return FigureSpec(
        name=name,
        title=title,
        caption=CAPTION,
        draw=partial(draw_layout, sheet=sheet),
        width=sheet.width,
        height=sheet.height,
    )


CAPTION = (
    "Above, the clean text, what the network is fed of it and what it is asked; below, a row for "
    "each place that asks and a filled square where it may see."
)


def arrange_contents(showing: ObjectiveContents, *, title: str, note: str = "") -> FigureLayout:
    """Place all elements from the top down."""
    sheet = FigureLayout()
    name, _, summary = title.partition(": ")
    summary = summary[:1].upper() + summary[1:]
    sheet.words.append(LayoutText(left=0, top=0.1, text=name, size=15, alignment="left", bold=True))
    sheet.words.append(LayoutText(left=0, top=0.42, text=summary, size=10.5, alignment="left"))
    sheet.extend_to(estimate_text_width(summary, 10.5), 0.66)
    if note:
        sheet.words.append(
            LayoutText(left=0, top=0.66, text=note, size=9, alignment="left", faint=True)
        )
        sheet.extend_to(estimate_text_width(note, 9), 0.86)
    margin = 0.15 + max(
        estimate_text_width(strip.name, 9) for panel in showing.panels for strip in panel.rows
    )
    for panel in showing.panels:
        _place_panel(sheet, panel, margin)
    for remark in showing.notes:
        sheet.words.append(
            LayoutText(left=0, top=sheet.height + 0.16, text=remark, alignment="left")
        )
        sheet.extend_to(estimate_text_width(remark), sheet.height + 0.28)
    corner = _place_matrices(sheet, showing.matrices)
    _place_legend(sheet, showing, corner)
    return sheet


def estimate_text_width(text: str, size: float = 10.0) -> float:
    """Approximate width of a text in inches; Chinese characters are square."""
    ems = sum(1.02 if east_asian_width(letter) in "WF" else 0.59 for letter in text)
    return ems * size / 72


def shorten_word(text: str) -> str:
    """A word, shortened to the limit."""
    shown = printable_name(text)
    return shown if len(shown) <= MAX_WORD_LENGTH else shown[: MAX_WORD_LENGTH - 1] + "…"


def _place_panel(sheet: FigureLayout, panel: CellPanel, margin: float) -> None:
    columns = len(panel.rows[0].cells)
    widths = [_column_width(panel, column) for column in range(columns)]
    top = sheet.height + 0.14
    if panel.name:
        heading = LayoutText(left=0, top=top + 0.08, text=panel.name, alignment="left", bold=True)
        sheet.words.append(heading)
        top += 0.26
    for chosen in _lines(widths, MAX_WIDTH_INCHES - margin):
        for strip in panel.rows:
            cells = [strip.cells[column] for column in chosen]
            tall = _height(strip.cells)
            middle = top + tall / 2
            label = LayoutText(
                left=margin - 0.12,
                top=middle,
                text=strip.name,
                size=9,
                alignment="right",
                faint=True,
            )
            sheet.words.append(label)
            left = margin
            for cell, column in zip(cells, chosen, strict=True):
                if cell is not None:
                    _place_cell(sheet, cell, left, top, widths[column], tall)
                left += widths[column]
            top += tall
            sheet.extend_to(left, top)
        top += 0.12


def _height(cells: Sequence[TokenCell | None]) -> float:
    told = [cell for cell in cells if cell is not None]
    if all(cell.style == "number" for cell in told):
        return NUMBER_ROW_INCHES
    return max([WORD_ROW_INCHES, *(image_side_inches(cell) + 0.08 for cell in told if cell.pixels)])


def image_side_inches(cell: TokenCell) -> float:
    """Side of an image in inches."""
    return max(MIN_IMAGE_INCHES, PIXEL_INCHES * len(cell.pixels))


def _column_width(panel: CellPanel, column: int) -> float:
    widths = [0.3]
    for strip in panel.rows:
        cell = strip.cells[column]
        if cell is not None and cell.pixels:
            widths.append(image_side_inches(cell) + 0.08)
        elif cell is not None:
            size = 8 if cell.style == "number" else 10
            widths.append(estimate_text_width(shorten_word(cell.text), size) + 0.19)
    return max(widths)


def _lines(widths: Sequence[float], room: float) -> list[list[int]]:
    """Columns by line: as many as fit."""
    lines: list[list[int]] = [[]]
    taken = 0.0
    for column, width in enumerate(widths):
        if lines[-1] and taken + width > room:
            lines.append([])
            taken = 0.0
        lines[-1].append(column)
        taken += width
    return lines


def _place_cell(
    sheet: FigureLayout, cell: TokenCell, left: float, top: float, width: float, height: float
) -> None:
    if cell.pixels:
        _place_image(sheet, cell, left + width / 2, top + height / 2)
        return
    number = cell.style == "number"
    if not number:
        sheet.boxes.append(
            LayoutBox(
                left=left + 0.025,
                top=top + 0.025,
                width=width - 0.05,
                height=height - 0.05,
                style=cell.style,
            )
        )
    ground = STYLE_COLOURS[cell.style][0]
    sheet.words.append(
        LayoutText(
            left=left + width / 2,
            top=top + height / 2,
            text=shorten_word(cell.text),
            size=8 if number else 10,
            colour=FOREGROUND_COLOUR if ground == "none" else DARK_TEXT_COLOUR,
            faint=number,
        )
    )


def _place_image(sheet: FigureLayout, cell: TokenCell, across: float, down: float) -> None:
    """Pixels around a centre: 1 is ink, -1 paper."""
    whole = image_side_inches(cell)
    side = whole / len(cell.pixels)
    for row, intensities in enumerate(cell.pixels):
        for column, intensity in enumerate(intensities):
            left, top = across - whole / 2 + side * column, down - whole / 2 + side * row
            sheet.pixels.append((left, top, side, (1 - intensity) / 2))


def _place_matrices(
    sheet: FigureLayout, matrices: Sequence[AttentionMaskGrid]
) -> tuple[float, float]:
    """Place matrices side by side, then wrap; return the free corner at the right."""
    every = [_Frame.of(matrix, GRID_WIDTH_INCHES[len(matrices)]) for matrix in matrices]
    for line in _lines([frame.width + 0.3 for frame in every], MAX_WIDTH_INCHES + 0.3):
        frames = [every[place] for place in line]
        above = max(frame.column_label_height for frame in frames)
        top, left = sheet.height + 0.22, 0.0
        for place, frame in zip(line, frames, strict=True):
            _place_matrix(
                sheet, matrices[place], replace(frame, column_label_height=above), left, top
            )
            left += frame.width + 0.3
    return left, top + 0.3 + above


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Dimensions of a matrix in inches: its cells and the labels around them."""

    side: float
    size: float
    """Font size of the labels, in points."""
    row_label_width: float
    column_label_height: float
    width: float

    @classmethod
    def of(cls, matrix: AttentionMaskGrid, room: float) -> _Frame:
        most = max(len(matrix.rows), len(matrix.columns))
        side = max(MIN_CELL_INCHES, min(MAX_CELL_INCHES, room / most))
        size = min(9.0, 40 * side)
        beside = (
            max(estimate_text_width(shorten_word(cell.text), size) for cell in matrix.rows) + 0.1
        )
        longest = max(estimate_text_width(shorten_word(cell.text), size) for cell in matrix.columns)
        arrows = [
            estimate_text_width(f"→ {shorten_word(word)}", size) for word in matrix.targets if word
        ]
        right = max(arrows) + 0.1 if arrows and matrix.show_targets else 0.0
        return cls(
            side=side,
            size=size,
            row_label_width=beside,
            column_label_height=0.88 * longest + 0.1 if _turned(matrix) else 0.22,
            width=max(
                beside + side * len(matrix.columns) + right, estimate_text_width(matrix.name, 11)
            ),
        )


def _turned(matrix: AttentionMaskGrid) -> bool:
    """Whether column labels are too long to be horizontal."""
    return any(len(printable_name(cell.text)) > 2 for cell in matrix.columns)


def _place_matrix(
    sheet: FigureLayout, matrix: AttentionMaskGrid, frame: _Frame, left: float, top: float
) -> None:
    name = LayoutText(left=left, top=top + 0.06, text=matrix.name, alignment="left", bold=True)
    sheet.words.append(name)
    x, y, side = left + frame.row_label_width, top + 0.3 + frame.column_label_height, frame.side
    _name_columns(sheet, matrix, frame, x, y)
    for row, cell in enumerate(matrix.rows):
        beside = LayoutText(
            left=x - 0.06,
            top=y + side * (row + 0.5),
            text=shorten_word(cell.text),
            size=frame.size,
            alignment="right",
            colour=_ink_of(cell),
        )
        sheet.words.append(beside)
        asked = matrix.targets[row]
        for column, seen in enumerate(matrix.allowed[row]):
            look = "unseen" if not seen else "sees" if asked else "sees pale"
            sheet.square(look, x + side * column, y + side * row, side)
        if asked and matrix.show_targets:
            right = x + side * len(matrix.columns) + 0.06
            arrow = replace(beside, left=right, text=f"→ {shorten_word(asked)}", alignment="left")
            sheet.words.append(replace(arrow, colour=COLOURS[2], bold=True))
    sheet.extend_to(left + frame.width, y + side * len(matrix.rows))


def _name_columns(
    sheet: FigureLayout, matrix: AttentionMaskGrid, frame: _Frame, x: float, y: float
) -> None:
    turned = _turned(matrix)
    for column, cell in enumerate(matrix.columns):
        sheet.words.append(
            LayoutText(
                left=x + frame.side * (column + 0.5),
                top=y - (0.05 if turned else 0.11),
                text=shorten_word(cell.text),
                size=frame.size,
                alignment="left" if turned else "center",
                rotation=60 if turned else 0,
                colour=_ink_of(cell),
            )
        )


def _ink_of(cell: TokenCell) -> str:
    """Text colour: a mask or a replaced token keeps its colour in the matrix."""
    return (
        STYLE_COLOURS[cell.style][1]
        if cell.style in ("mask", "changed", "other")
        else FOREGROUND_COLOUR
    )


def _place_legend(
    sheet: FigureLayout, showing: ObjectiveContents, corner: tuple[float, float]
) -> None:
    """Legend of the styles in use: right of the matrices if there is room, else below."""
    entries = _legend(showing)
    widest = max(0.29 + estimate_text_width(said, 9) for _, said in entries)
    left, top = corner
    beside = left + 0.2 + widest <= max(sheet.width, MAX_WIDTH_INCHES - 1.5)
    left, top = (left + 0.2, top) if beside else (0.0, sheet.height + 0.2)
    for look, said in entries:
        width = 0.29 + estimate_text_width(said, 9)
        if not beside and left and left + width > max(sheet.width, MAX_WIDTH_INCHES):
            top, left = top + 0.26, 0.0
        if look in STYLE_COLOURS:
            sheet.boxes.append(LayoutBox(left=left, top=top, width=0.22, height=0.18, style=look))
        else:
            sheet.square(look, left, top - 0.01, 0.2)
        words = LayoutText(left=left + 0.29, top=top + 0.09, text=said, size=9, alignment="left")
        sheet.words.append(words)
        sheet.extend_to(left + width, top + 0.2)
        left, top = (left, top + 0.27) if beside else (left + width + 0.15, top)


def _legend(showing: ObjectiveContents) -> list[tuple[str, str]]:
    looks: set[str] = set(showing.styles)
    looks |= {
        "sees" if asked else "sees pale"
        for matrix in showing.matrices
        for asked, seen in zip(matrix.targets, matrix.allowed, strict=True)
        if any(seen)
    }
    return [(look, said) for look, said in STYLE_MEANINGS.items() if look in looks]


def draw_layout(figure: Figure, sheet: FigureLayout) -> None:
    """Draw all elements on one axes in inches, y downwards."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, sheet.width)
    axes.set_ylim(sheet.height, 0)
    axes.axis("off")
    for box in sheet.boxes:
        ground, rim = STYLE_COLOURS[box.style]
        axes.add_patch(
            FancyBboxPatch(
                (box.left, box.top),
                box.width,
                box.height,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=ground,
                edgecolor=rim,
                linewidth=1.1 if box.style != "plain" else 0.8,
                clip_on=False,
            )
        )
    for look, squares in sheet.squares.items():
        _draw_squares(axes, look, squares)
    if sheet.pixels:
        _draw_pixels(axes, sheet.pixels)
    for words in sheet.words:
        _write(axes, words)


SQUARE_STYLES: dict[str, dict[str, Any]] = {
    "sees": {"facecolors": ALLOWED_COLOUR, "edgecolors": ALLOWED_COLOUR},
    "sees pale": {"facecolors": ALLOWED_PALE_COLOUR, "edgecolors": ALLOWED_PALE_COLOUR},
    "unseen": {"facecolors": "none", "edgecolors": CELL_BORDER_COLOUR},
}


def _draw_squares(axes: Axes, look: str, squares: Sequence[tuple[float, float, float]]) -> None:
    across, down, sides = zip(*squares, strict=True)
    sizes = [(0.8 * side * 72) ** 2 for side in sides]
    axes.scatter(
        across, down, s=sizes, marker="s", linewidths=0.6, label=look, clip_on=False,
        **SQUARE_STYLES[look],
    )  # fmt: skip


def _draw_pixels(axes: Axes, pixels: Sequence[tuple[float, float, float, float]]) -> None:
    shapes = [Rectangle((left, top), side, side) for left, top, side, _ in pixels]
    greys = [(min(max(grey, 0.0), 1.0),) * 3 for *_, grey in pixels]
    axes.add_collection(
        PatchCollection(
            shapes, facecolors=greys, edgecolors=CELL_BORDER_COLOUR, linewidths=0.4, label="pixels"
        )
    )


def _write(axes: Axes, words: LayoutText) -> None:
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
        **(slanted if words.rotation else {}),
    )
