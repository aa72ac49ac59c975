"""Figures in a given size, font and title: a drawn figure is changed before it is rendered."""

from __future__ import annotations

import warnings

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

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


def style_figure(figure: Figure, style: FigureStyle, *, fixed_layout: bool) -> Bbox:
    """Apply a style to a drawn figure; returns the part to render, in inches.

    Where a figure has a `fixed_layout` (texts placed by the inch), everything is scaled together.
    Otherwise texts have the font size and the axes fill what they leave of the size.
    """
    scale = style.text_scale
    _scale_texts(figure, scale)
    if fixed_layout:
        _scale_layout(figure, scale)
    _set_title(figure, style)
    if style.figure_size is None:
        return drawn_extent(figure)
    if fixed_layout:
        box = drawn_extent(figure)
        fit = min(style.figure_size[0] / box.width, style.figure_size[1] / box.height)
        _scale_texts(figure, fit)
        _scale_layout(figure, fit)
        box = drawn_extent(figure)
    else:
        box = _fit_axes(figure, style.figure_size)
    return _exact_box(box, style.figure_size)


def _exact_box(box: Bbox, size: tuple[float, float]) -> Bbox:
    """A box of exactly that size around the middle of what is drawn."""
    width, height = size
    left = (box.x0 + box.x1 - width) / 2
    bottom = (box.y0 + box.y1 - height) / 2
    return Bbox.from_bounds(left, bottom, width, height)


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
        figure.set_size_inches(*natural)
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
        figure.set_size_inches(*canvas)
    return True


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
                axis.set_tick_params(which="both", labelsize=ticks[0].label1.get_fontsize() * scale)
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in labels:
            text.set_fontsize(text.get_fontsize() * scale)


def _scale_layout(figure: Figure, scale: float) -> None:
    """Scale the canvas, and the markers, whose sizes are in points."""
    if scale == 1.0:
        return
    figure.set_size_inches(*(figure.get_size_inches() * scale))
    for markers in figure.findobj(PathCollection):
        if isinstance(markers, PathCollection):
            markers.set_sizes(np.asarray(markers.get_sizes()) * scale**2)


def _set_title(figure: Figure, style: FigureStyle) -> None:
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
        (box.y1 - PADDING + TITLE_GAP) / height,
        style.title,
        fontsize=TITLE_POINTS * style.text_scale,
        va="bottom",
        label=TITLE,
    )
