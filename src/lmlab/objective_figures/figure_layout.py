"""Layout of an objective figure: clean text, masked and input tokens, targets, attention masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from unicodedata import east_asian_width

from lmlab.objective_figures.figure_contents import (
    AttentionMaskGrid,
    CellPanel,
    ObjectiveContents,
    TokenCell,
)
from lmlab.objective_figures.layout_elements import (
    DARK_TEXT_COLOUR,
    STYLE_COLOURS,
    FigureLayout,
    LayoutBox,
    LayoutText,
    draw_layout,
)
from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR, FigureSpec, printable_name
from lmlab.plotting.figure_styling import TITLE

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

STYLE_MEANINGS = {
    "hidden": "masked from its prediction",
    "mask": "replaced by a special token",
    "changed": "replaced by another token",
    "other": "token of another text",
    "target": "prediction target",
    "answer": "input, masked from its prediction",
    "attends": "attends, with a prediction target",
    "attends pale": "attends, without a prediction target",
}


def objective_figure_spec(
    contents: ObjectiveContents, *, name: str, title: str, note: str = ""
) -> FigureSpec:
    """The figure of one text under an objective."""
    layout = arrange_contents(contents, title=title, note=note)
    return FigureSpec(
        name=name,
        title=title,
        caption=CAPTION,
        draw=partial(draw_layout, layout=layout),
        width=layout.width,
        height=layout.height,
        fixed_layout=True,
    )


CAPTION = (
    "Top: the clean text, the input tokens and the prediction targets. Bottom: the attention mask, "
    "with a row for each query position and a filled square where it may attend."
)


def arrange_contents(contents: ObjectiveContents, *, title: str, note: str = "") -> FigureLayout:
    """Place all elements from the top down; without a title and note, no room is left for them."""
    figure = FigureLayout()
    _place_heading(figure, title, note)
    margin = 0.15 + max(
        estimate_text_width(row.name, 9) for panel in contents.panels for row in panel.rows
    )
    for panel in contents.panels:
        _place_panel(figure, panel, margin)
    for sentence in contents.notes:
        figure.words.append(
            LayoutText(left=0, top=figure.height + 0.16, text=sentence, alignment="left")
        )
        figure.extend_to(estimate_text_width(sentence), figure.height + 0.28)
    corner = _place_matrices(figure, contents.matrices)
    _place_legend(figure, contents, corner)
    return figure


def _place_heading(figure: FigureLayout, title: str, note: str) -> None:
    name, _, summary = title.partition(": ")
    summary = summary[:1].upper() + summary[1:]
    if name:
        figure.words.append(
            LayoutText(
                left=0, top=0.1, text=name, size=15, alignment="left", bold=True, label=TITLE
            )
        )
    if name and not summary:
        figure.extend_to(estimate_text_width(name, 15), 0.3)
    elif summary:
        figure.words.append(LayoutText(left=0, top=0.42, text=summary, size=10.5, alignment="left"))
        figure.extend_to(estimate_text_width(summary, 10.5), 0.66)
    if note:
        figure.words.append(
            LayoutText(left=0, top=0.66, text=note, size=9, alignment="left", faint=True)
        )
        figure.extend_to(estimate_text_width(note, 9), 0.86)


def estimate_text_width(text: str, size: float = 10.0) -> float:
    """Approximate width of a text in inches; Chinese characters are square."""
    ems = sum(1.02 if east_asian_width(letter) in "WF" else 0.59 for letter in text)
    return ems * size / 72


def shorten_word(text: str) -> str:
    """A word, shortened to the limit."""
    word = printable_name(text)
    return word if len(word) <= MAX_WORD_LENGTH else word[: MAX_WORD_LENGTH - 1] + "…"


def _place_panel(layout: FigureLayout, panel: CellPanel, margin: float) -> None:
    columns = len(panel.rows[0].cells)
    widths = [_column_width(panel, column) for column in range(columns)]
    top = layout.height + 0.14
    if panel.name:
        heading = LayoutText(left=0, top=top + 0.08, text=panel.name, alignment="left", bold=True)
        layout.words.append(heading)
        top += 0.26
    for columns_of_line in _lines(widths, MAX_WIDTH_INCHES - margin):
        for row in panel.rows:
            cells = [row.cells[column] for column in columns_of_line]
            height = _height(row.cells)
            centre = top + height / 2
            label = LayoutText(
                left=margin - 0.12, top=centre, text=row.name, size=9, alignment="right", faint=True
            )
            layout.words.append(label)
            left = margin
            for cell, column in zip(cells, columns_of_line, strict=True):
                if cell is not None:
                    _place_cell(layout, cell, left, top, widths[column], height)
                left += widths[column]
            top += height
            layout.extend_to(left, top)
        top += 0.12


def _height(cells: Sequence[TokenCell | None]) -> float:
    filled = [cell for cell in cells if cell is not None]
    if all(cell.style == "number" for cell in filled):
        return NUMBER_ROW_INCHES
    return max(
        [WORD_ROW_INCHES, *(image_side_inches(cell) + 0.08 for cell in filled if cell.pixels)]
    )


def image_side_inches(cell: TokenCell) -> float:
    """Side of an image in inches."""
    return max(MIN_IMAGE_INCHES, PIXEL_INCHES * len(cell.pixels))


def _column_width(panel: CellPanel, column: int) -> float:
    widths = [0.3]
    for row in panel.rows:
        cell = row.cells[column]
        if cell is not None and cell.pixels:
            widths.append(image_side_inches(cell) + 0.08)
        elif cell is not None:
            size = 8 if cell.style == "number" else 10
            widths.append(estimate_text_width(shorten_word(cell.text), size) + 0.19)
    return max(widths)


def _lines(widths: Sequence[float], max_width: float) -> list[list[int]]:
    """Columns by line: as many as fit."""
    lines: list[list[int]] = [[]]
    used = 0.0
    for column, width in enumerate(widths):
        if lines[-1] and used + width > max_width:
            lines.append([])
            used = 0.0
        lines[-1].append(column)
        used += width
    return lines


def _place_cell(
    layout: FigureLayout, cell: TokenCell, left: float, top: float, width: float, height: float
) -> None:
    if cell.pixels:
        _place_image(layout, cell, left + width / 2, top + height / 2)
        return
    number = cell.style == "number"
    if not number:
        layout.boxes.append(
            LayoutBox(
                left=left + 0.025,
                top=top + 0.025,
                width=width - 0.05,
                height=height - 0.05,
                style=cell.style,
            )
        )
    fill = STYLE_COLOURS[cell.style][0]
    layout.words.append(
        LayoutText(
            left=left + width / 2,
            top=top + height / 2,
            text=shorten_word(cell.text),
            size=8 if number else 10,
            colour=FOREGROUND_COLOUR if fill == "none" else DARK_TEXT_COLOUR,
            faint=number,
        )
    )


def _place_image(layout: FigureLayout, cell: TokenCell, x: float, y: float) -> None:
    """Pixels around a centre: 1 is ink, -1 paper."""
    image_side = image_side_inches(cell)
    side = image_side / len(cell.pixels)
    for row, intensities in enumerate(cell.pixels):
        for column, intensity in enumerate(intensities):
            left, top = x - image_side / 2 + side * column, y - image_side / 2 + side * row
            layout.pixels.append((left, top, side, (1 - intensity) / 2))


def _place_matrices(
    layout: FigureLayout, matrices: Sequence[AttentionMaskGrid]
) -> tuple[float, float]:
    """Place matrices side by side, then wrap; return the free corner at the right."""
    all_frames = [_Frame.of(matrix, GRID_WIDTH_INCHES[len(matrices)]) for matrix in matrices]
    for line in _lines([frame.width + 0.3 for frame in all_frames], MAX_WIDTH_INCHES + 0.3):
        frames = [all_frames[index] for index in line]
        above = max(frame.column_label_height for frame in frames)
        top, left = layout.height + 0.22, 0.0
        for index, frame in zip(line, frames, strict=True):
            _place_matrix(
                layout, matrices[index], replace(frame, column_label_height=above), left, top
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
    def of(cls, matrix: AttentionMaskGrid, max_width: float) -> _Frame:
        cells = max(len(matrix.rows), len(matrix.columns))
        side = max(MIN_CELL_INCHES, min(MAX_CELL_INCHES, max_width / cells))
        size = min(9.0, 40 * side)
        left = max(estimate_text_width(shorten_word(cell.text), size) for cell in matrix.rows) + 0.1
        label_width = max(
            estimate_text_width(shorten_word(cell.text), size) for cell in matrix.columns
        )
        arrows = [
            estimate_text_width(f"→ {shorten_word(word)}", size) for word in matrix.targets if word
        ]
        right = max(arrows) + 0.1 if arrows and matrix.show_targets else 0.0
        return cls(
            side=side,
            size=size,
            row_label_width=left,
            column_label_height=0.88 * label_width + 0.1 if _has_slanted_labels(matrix) else 0.22,
            width=max(
                left + side * len(matrix.columns) + right, estimate_text_width(matrix.name, 11)
            ),
        )


def _has_slanted_labels(matrix: AttentionMaskGrid) -> bool:
    """Whether column labels are too long to be horizontal."""
    return any(len(printable_name(cell.text)) > 2 for cell in matrix.columns)


def _place_matrix(
    layout: FigureLayout, matrix: AttentionMaskGrid, frame: _Frame, left: float, top: float
) -> None:
    name = LayoutText(left=left, top=top + 0.06, text=matrix.name, alignment="left", bold=True)
    layout.words.append(name)
    x, y, side = left + frame.row_label_width, top + 0.3 + frame.column_label_height, frame.side
    _name_columns(layout, matrix, frame, x, y)
    for row, cell in enumerate(matrix.rows):
        label = LayoutText(
            left=x - 0.06,
            top=y + side * (row + 0.5),
            text=shorten_word(cell.text),
            size=frame.size,
            alignment="right",
            colour=_text_colour(cell),
        )
        layout.words.append(label)
        target = matrix.targets[row]
        for column, allowed in enumerate(matrix.allowed[row]):
            style = "masked" if not allowed else "attends" if target else "attends pale"
            layout.square(style, x + side * column, y + side * row, side)
        if target and matrix.show_targets:
            right = x + side * len(matrix.columns) + 0.06
            arrow = replace(label, left=right, text=f"→ {shorten_word(target)}", alignment="left")
            layout.words.append(replace(arrow, colour=COLOURS[2], bold=True))
    layout.extend_to(left + frame.width, y + side * len(matrix.rows))


def _name_columns(
    layout: FigureLayout, matrix: AttentionMaskGrid, frame: _Frame, x: float, y: float
) -> None:
    turned = _has_slanted_labels(matrix)
    for column, cell in enumerate(matrix.columns):
        layout.words.append(
            LayoutText(
                left=x + frame.side * (column + 0.5),
                top=y - (0.05 if turned else 0.11),
                text=shorten_word(cell.text),
                size=frame.size,
                alignment="left" if turned else "center",
                rotation=60 if turned else 0,
                colour=_text_colour(cell),
            )
        )


def _text_colour(cell: TokenCell) -> str:
    """Text colour: a mask or a replaced token keeps its colour in the matrix."""
    return (
        STYLE_COLOURS[cell.style][1]
        if cell.style in ("mask", "changed", "other")
        else FOREGROUND_COLOUR
    )


def _place_legend(
    layout: FigureLayout, contents: ObjectiveContents, corner: tuple[float, float]
) -> None:
    """Legend of the styles in use: right of the matrices if there is room, else below."""
    entries = _legend(contents)
    widest = max(0.29 + estimate_text_width(meaning, 9) for _, meaning in entries)
    left, top = corner
    at_right = left + 0.2 + widest <= max(layout.width, MAX_WIDTH_INCHES - 1.5)
    left, top = (left + 0.2, top) if at_right else (0.0, layout.height + 0.2)
    for style, meaning in entries:
        width = 0.29 + estimate_text_width(meaning, 9)
        if not at_right and left and left + width > max(layout.width, MAX_WIDTH_INCHES):
            top, left = top + 0.26, 0.0
        if style in STYLE_COLOURS:
            layout.boxes.append(LayoutBox(left=left, top=top, width=0.22, height=0.18, style=style))
        else:
            layout.square(style, left, top - 0.01, 0.2)
        words = LayoutText(left=left + 0.29, top=top + 0.09, text=meaning, size=9, alignment="left")
        layout.words.append(words)
        layout.extend_to(left + width, top + 0.2)
        left, top = (left, top + 0.27) if at_right else (left + width + 0.15, top)


def _legend(contents: ObjectiveContents) -> list[tuple[str, str]]:
    styles: set[str] = set(contents.styles)
    styles |= {
        "attends" if target else "attends pale"
        for matrix in contents.matrices
        for target, allowed in zip(matrix.targets, matrix.allowed, strict=True)
        if any(allowed)
    }
    return [(style, meaning) for style, meaning in STYLE_MEANINGS.items() if style in styles]
