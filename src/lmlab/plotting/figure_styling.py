"""Figures in a given size, font and title: a drawn figure is changed before it is rendered."""

from __future__ import annotations

import warnings

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.figure_style import FigureStyle

TITLE = "figure title"
"""The label of a text that is a figure's title, which a style may replace."""
PADDING = 0.1
"""Inches around what is drawn."""
TITLE_POINTS = 11.0
TITLE_GAP = 0.06
"""Inches between an added title and what is below it."""
PASSES, TOLERANCE = 12, 0.005
"""Passes and inches of fitting a size: labels have a size of their own, so it is not linear."""
MIN_SHARE = 0.4
"""Of a figure's width and height, for what is drawn, labels not counted."""
SHRINK, MAX_SHRINKS = 0.9, 12
"""Factor on texts that leave too little room, and how often it is applied."""


def drawn_extent(figure: Figure) -> Bbox:
    """Bounding box in inches, with labels beyond the figure's edge; costs a rendering."""
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    return figure.get_tightbbox(canvas.get_renderer()).padded(PADDING)


def layout_scale(figure: Figure, style: FigureStyle) -> float:
    """The factor by which a drawn figure of a fixed layout is scaled in a style."""
    if style.figure_size is None:
        return style.text_scale
    _set_title(figure, style, 1.0)
    box = drawn_extent(figure)
    return float(min(style.figure_size[0] / box.width, style.figure_size[1] / box.height))


def style_figure(figure: Figure, style: FigureStyle, *, scale: float | None) -> Bbox:
    """Apply a style to a drawn figure; returns the part to render, in inches.

    Where a figure has a fixed layout (texts placed by the inch), all of it is scaled by `scale`.
    Otherwise texts have the font size and the axes fill what they leave of the size.
    """
    _scale_texts(figure, style.text_scale if scale is None else scale)
    if scale is not None:
        _scale_layout(figure, scale)
    _set_title(figure, style, style.text_scale if scale is None else scale)
    if style.figure_size is None:
        return drawn_extent(figure)
    fit = _fit_axes if scale is None else _fit_layout
    return _exact_box(fit(figure, style.figure_size), style.figure_size)


def _exact_box(box: Bbox, size: tuple[float, float]) -> Bbox:
    """A box of exactly that size around the middle of what is drawn."""
    width, height = size
    left = (box.x0 + box.x1 - width) / 2
    bottom = (box.y0 + box.y1 - height) / 2
    return Bbox.from_bounds(left, bottom, width, height)


def _fit_layout(figure: Figure, size: tuple[float, float]) -> Bbox:
    """Scale once more where what keeps its points (line widths) leaves the size."""
    for _ in range(PASSES):
        box = drawn_extent(figure)
        scale = min(size[0] / box.width, size[1] / box.height)
        if abs(scale - 1) < TOLERANCE:
            break
        _scale_texts(figure, scale)
        _scale_layout(figure, scale)
    return drawn_extent(figure)


def _fit_axes(figure: Figure, size: tuple[float, float]) -> Bbox:
    """Resize the canvas until what is drawn, labels included, has a size.

    Texts are made smaller where they would leave less than `MIN_SHARE` of it.
    """
    natural = figure.get_size_inches()
    for shrinks in range(MAX_SHRINKS + 1):
        if _fits(figure, size):
            if shrinks:
                warnings.warn(
                    f"labels leave no room in a figure of {size[0]:g}x{size[1]:g} inches, so text "
                    f"was reduced to {SHRINK**shrinks:.0%}; give a larger figure_size, or a "
                    "smaller font_size.",
                    LmlabWarning,
                    stacklevel=2,
                )
            return drawn_extent(figure)
        _scale_texts(figure, SHRINK)
        _resize(figure, natural)
    raise UserError(
        f"figure_size {size[0]:g}x{size[1]:g} leaves no room beside the labels; make it larger."
    )


def _fits(figure: Figure, size: tuple[float, float]) -> bool:
    for _ in range(PASSES):
        box = drawn_extent(figure)
        change = np.array(size) - (box.width, box.height)
        if np.abs(change).max() < TOLERANCE:
            return True
        canvas = figure.get_size_inches() + change
        if (canvas < MIN_SHARE * np.array(size)).any():
            return False
        _resize(figure, canvas)
    return True


def _resize(figure: Figure, canvas: NDArray[np.float64]) -> None:
    """Resize the canvas; texts above it (titles) keep their distance from the axes in inches."""
    before = figure.get_size_inches()[1]
    figure.set_size_inches(*canvas)
    for text in figure.texts:
        if text.get_position()[1] > 1:
            text.set_y(1 + (text.get_position()[1] - 1) * before / canvas[1])


def _scale_texts(figure: Figure, scale: float) -> None:
    if scale == 1.0:
        return
    figure.draw_without_rendering()  # makes the tick labels
    labels: set[int] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            labels |= {id(text) for tick in ticks for text in (tick.label1, tick.label2)}
            if ticks:  # ticks made later have the size, too
                size = float(ticks[0].label1.get_fontsize())
                axis.set_tick_params(which="both", labelsize=size * scale)
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in labels:
            text.set_fontsize(float(text.get_fontsize()) * scale)
    for text in figure.texts:
        if text.get_position()[1] > 1:
            text.set_y(1 + (text.get_position()[1] - 1) * scale)


def _scale_layout(figure: Figure, scale: float) -> None:
    """Scale the canvas, and the markers, whose sizes are in points."""
    if scale == 1.0:
        return
    _resize(figure, figure.get_size_inches() * scale)
    for markers in figure.findobj(PathCollection):
        if isinstance(markers, PathCollection):
            markers.set_sizes(np.asarray(markers.get_sizes()) * scale**2)


def _set_title(figure: Figure, style: FigureStyle, scale: float) -> None:
    """Replace the title, or add one above a figure that draws none."""
    if style.title is None:
        return
    drawn = [text for text in figure.findobj(Text) if text.get_label() == TITLE]
    for text in drawn:
        if isinstance(text, Text):
            text.set_text(style.title)
    if drawn or not style.title:
        return
    box = drawn_extent(figure)
    width, height = figure.get_size_inches()
    figure.text(
        (box.x0 + PADDING) / width,
        (box.y1 - PADDING + TITLE_GAP * scale) / height,
        style.title,
        fontsize=TITLE_POINTS * scale,
        va="bottom",
        label=TITLE,
    )
