"""Charts of a model's inner values: heat maps, bar charts and text tables.

Colours are colour-blind safe: zero is the page itself, larger is deeper blue; with values of both
signs, negative ones are orange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lmlab.core.capture import REAL, Bounds
from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR, printable_name, set_plain_log_scale
from lmlab.plotting.figure_styling import TITLE

Values = NDArray[np.float64]

CELL_INCHES = 0.27  # of a cell with a label
MAX_BORDERED_CELLS = 1600
"""Heat maps with more cells have no cell borders."""
MAX_NUMBERED_CELLS = 64
"""Heat maps with at most this many cells show their numbers."""
SMALL_CELL_INCHES = 0.16
"""Inches of a cell where there are many."""
MAX_LABEL_LENGTH = 14
MAX_HORIZONTAL_LABEL_LENGTH = 36
"""Characters of a sentence as a row label."""
BORDER_COLOUR = "#8c959f55"
"""Cell border; visible on white and on black."""
MAX_UNLABELLED_INCHES = 4.2
"""Inches along an axis without labels."""


@dataclass(frozen=True, kw_only=True)
class HeatMapAxis:
    """An axis of a heat map: its name, and a label for each entry where there are some."""

    name: str
    labels: tuple[str, ...] | None = None
    max_label_length: int = MAX_LABEL_LENGTH
    """Characters of a label before it is truncated."""

    def inches(self, entries: int, cell: float) -> float:
        """Length of the axis, where a labelled cell takes `cell` inches."""
        return (
            cell * entries if self.labels else min(MAX_UNLABELLED_INCHES, max(1.0, 0.12 * entries))
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class HeatMap:
    """Heat map: a matrix with its axes; NaN for empty cells."""

    values: Values
    rows: HeatMapAxis
    columns: HeatMapAxis
    title: str = ""
    """Title, where there are several."""
    cell: float = CELL_INCHES
    bounds: Bounds = REAL
    """The interval of the values by definition: 0 to 1 for probabilities."""

    @property
    def inches(self) -> tuple[float, float]:
        """Width and height."""
        height, width = self.values.shape
        return self.columns.inches(width, self.cell), self.rows.inches(height, self.cell)


@dataclass(frozen=True, kw_only=True)
class ColourScale:
    """Colour scale: the range of values that the colours span."""

    low: float
    high: float

    @property
    def colours(self) -> Colormap:
        above, below = to_rgb(COLOURS[0]), to_rgb(COLOURS[1])
        stops = [(0.0, (*above, 0.0)), (1.0, (*above, 1.0))]
        if self.low < 0:
            # Both halves meet at zero: evenly spaced, a third of the scale would have no colour.
            stops = [(0.0, (*below, 1.0)), (0.5, (*below, 0.0)), (0.5, (*above, 0.0)), stops[1]]
        return LinearSegmentedColormap.from_list("lmlab", stops)

    @property
    def norm(self) -> Normalize:
        return Normalize(self.low, self.high)


ROUNDING = 1e-6
"""Relative to the largest value: negatives smaller than this are rounding errors."""


def colour_scale(values: Values, bounds: Bounds = REAL) -> ColourScale:
    """Colour scale from zero to the largest value, or symmetric around zero.

    The bounds decide: values that can't be negative have no scale below zero, whatever the rounding
    errors.
    """
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if bounds[0] < 0 and low < -ROUNDING * max(high, -low):
        limit = max(-low, high)
        return ColourScale(low=-limit, high=limit)
    # Probabilities close to one are shown on their full scale.
    return ColourScale(low=0.0, high=1.0 if 0.6 < high <= 1.0 else high or 1.0)


MAX_WIDTH_INCHES = 9.5
"""Maximum width in inches of heat maps side by side before wrapping."""
PANEL_GAP = (0.45, 0.4)
"""Inches between heat maps, horizontally and vertically."""


def draw_heat_maps(figure: Figure, grids: Sequence[HeatMap], *, title: str) -> None:
    """Draw heat maps of one shape on one scale, in reading order, labelled at the left and bottom.

    The figure is as large as the cells; labels are outside of it.
    """
    scale = colour_scale(np.concatenate([grid.values.ravel() for grid in grids]), grids[0].bounds)
    width, height = figure.get_size_inches()
    panel_width, panel_height = grids[0].inches
    per_row = _panels_per_row(grids)
    for index, grid in enumerate(grids):
        row, column = divmod(index, per_row)
        left, top = column * (panel_width + PANEL_GAP[0]), row * (panel_height + PANEL_GAP[1])
        box = (
            left / width,
            1 - (top + panel_height) / height,
            panel_width / width,
            panel_height / height,
        )
        axes = figure.add_axes(box)
        lowest = index + per_row >= len(grids)
        draw_heat_map(axes, grid, scale, rows_named=column == 0, columns_named=lowest)
        if len(grids) > 1:
            axes.set_title(printable_name(grid.title), fontsize=9)
    above = 0.32 if len(grids) > 1 else 0.12
    figure.text(0, 1 + above / height, title, fontsize=11, label=TITLE)
    draw_colour_bar(
        figure, scale, left=min(len(grids), per_row) * (panel_width + PANEL_GAP[0]) - PANEL_GAP[0]
    )


def heat_maps_size(grids: Sequence[HeatMap]) -> tuple[float, float]:
    """Figure size in inches for `draw_heat_maps`."""
    (width, height), per_row = grids[0].inches, _panels_per_row(grids)
    columns, rows = min(len(grids), per_row), -(-len(grids) // per_row)
    gap_x, gap_y = PANEL_GAP
    return columns * (width + gap_x) - gap_x, rows * (height + gap_y) - gap_y


def _panels_per_row(grids: Sequence[HeatMap]) -> int:
    return max(1, int((MAX_WIDTH_INCHES + PANEL_GAP[0]) // (grids[0].inches[0] + PANEL_GAP[0])))


def draw_heat_map(
    axes: Axes,
    grid: HeatMap,
    scale: ColourScale,
    *,
    rows_named: bool = True,
    columns_named: bool = True,
) -> None:
    """Draw one heat map, first row at the top."""
    height, width = grid.values.shape
    masked = np.ma.masked_invalid(grid.values)
    axes.imshow(
        masked,
        cmap=scale.colours,
        norm=scale.norm,
        interpolation="none",
        aspect="auto",
        extent=(0, width, height, 0),
    )
    if grid.values.size <= MAX_BORDERED_CELLS:
        _draw_cell_borders(axes, np.isfinite(grid.values))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    if grid.values.size <= MAX_NUMBERED_CELLS and grid.inches[0] / width > 0.25:
        _draw_numbers(axes, grid.values)
    size = 9 if grid.cell == CELL_INCHES else 7
    if columns_named:
        label_columns(axes, grid.columns, width, size=size)
    else:
        axes.set_xticks([])
    if rows_named:
        label_rows(axes, grid.rows, height, size=size)
    else:
        axes.set_yticks([])
    axes.tick_params(length=0)
    hide_spines(axes)


def hide_spines(axes: Axes) -> None:
    """Hide the frame of the axes."""
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_cell_borders(axes: Axes, filled: NDArray[np.bool_]) -> None:
    """Lines between non-empty cells; a border for each would make the SVG large."""
    for mask, draw in ((filled, axes.hlines), (filled.T, axes.vlines)):
        edges = np.zeros((len(mask) + 1, mask.shape[1]), dtype=bool)
        edges[:-1] |= mask
        edges[1:] |= mask
        lines = np.flatnonzero(edges.any(1))
        first = edges[lines].argmax(1)
        last = mask.shape[1] - edges[lines, ::-1].argmax(1)
        draw(lines, first, last, colors=BORDER_COLOUR, linewidth=0.5)


def _draw_numbers(axes: Axes, values: Values) -> None:
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            label = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.1f}"
            centre = (column + 0.5, row + 0.5)
            axes.annotate(
                label, centre, ha="center", va="center", fontsize=6.5, color=FOREGROUND_COLOUR
            )


def label_columns(axes: Axes, axis: HeatMapAxis, entries: int, *, size: float = 9) -> None:
    """Column labels, slanted unless they are one or two characters."""
    axes.set_xlabel(axis.name)
    axes.set_xticks(**_ticks(axis, entries, size))
    for name in axes.get_xticklabels():
        if axis.labels is not None and len(name.get_text()) > 2:
            name.set(rotation=50, ha="right", rotation_mode="anchor")


def label_rows(axes: Axes, axis: HeatMapAxis, entries: int, *, size: float = 9) -> None:
    """Row labels, at the left."""
    axes.set_ylabel(axis.name)
    axes.set_yticks(**_ticks(axis, entries, size))


def _ticks(axis: HeatMapAxis, entries: int, size: float) -> dict[str, Any]:
    """Tick positions and labels: every entry's label, or a few numbers."""
    if axis.labels is None:
        ticks = _tick_entries(entries)
        return {"ticks": [entry + 0.5 for entry in ticks], "labels": [str(e + 1) for e in ticks]}
    labels = [shorten_label(label, axis.max_label_length) for label in axis.labels]
    return {"ticks": np.arange(entries) + 0.5, "labels": labels, "fontsize": size}


def _tick_entries(entries: int) -> list[int]:
    """A few round tick positions where not every entry can be labelled."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if entries / s <= 11)
    if step == 1:
        return list(range(entries))
    # 1, 4, 6, 8 and 1, 5, 10, 15: the first is always labelled, and no other so near that they
    # touch.
    return [0, *range(step - 1 if step > 2 else 3, entries, step)]


def shorten_label(label: str, max_length: int = MAX_LABEL_LENGTH) -> str:
    """Truncate a label to leave room for its neighbours."""
    printable = printable_name(label)
    return printable if len(printable) <= max_length else printable[: max_length - 1].rstrip() + "…"


def draw_colour_bar(figure: Figure, scale: ColourScale, *, left: float) -> None:
    """Colour bar, at the right of the cells and as high as they are, or an inch."""
    width, height = figure.get_size_inches()
    bar_height = min(height, 1.3)
    axes = figure.add_axes(
        ((left + 0.18) / width, 1 - bar_height / height, 0.11 / width, bar_height / height),
        label="colours",
    )
    mappable = ScalarMappable(norm=scale.norm, cmap=scale.colours)
    bar = figure.colorbar(mappable, cax=axes)
    bar.outline.set_linewidth(0.4)
    middle = (scale.low + scale.high) / 2
    bar.set_ticks([scale.low, middle, scale.high])
    bar.set_ticklabels([f"{tick:.3g}" for tick in (scale.low, middle, scale.high)])
    axes.tick_params(labelsize=8, length=2)


@dataclass(frozen=True, kw_only=True, eq=False)
class BarChart:
    """Bar chart, with a label for each bar where there is room."""

    values: Values
    labels: tuple[str, ...] | None
    axis: str
    unit: str
    remark: str = ""
    """Text in the corner of the axes."""
    level: float | None = None
    """A dashed reference line, such as the value of a uniform distribution."""
    horizontal: bool = False
    """Horizontal bars, for long labels."""


MAX_BARS = 40


def draw_bar_chart(figure: Figure, bars: BarChart, *, title: str) -> None:
    """Draw labelled bars; more than `MAX_BARS` as one outline on a log scale."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_title(title, loc="left", fontsize=11).set_label(TITLE)
    indices = np.arange(len(bars.values))
    if bars.horizontal:
        _draw_horizontal(axes, bars, indices)
    elif len(indices) <= MAX_BARS:
        axes.bar(indices + 0.5, bars.values, width=0.72, color=COLOURS[0])
        axes.set_xlim(0, len(indices))
        label_columns(axes, HeatMapAxis(name=bars.axis, labels=bars.labels), len(indices))
        axes.set_ylabel(bars.unit)
        axes.tick_params(axis="x", length=0)
    else:
        _draw_outline(axes, bars, indices)
    if bars.level is not None:
        line = partial(axes.axvline if bars.horizontal else axes.axhline, bars.level)
        line(color=FOREGROUND_COLOUR, linewidth=1, linestyle=(0, (2, 2)))
    if bars.remark and bars.horizontal:
        axes.set_title(bars.remark, loc="right", fontsize=9)
    elif bars.remark:
        bottom, top = axes.get_ylim()
        if axes.get_yscale() == "linear":
            axes.set_ylim(bottom, top + 0.16 * (top - bottom))
        where = axes.transAxes
        axes.text(0.99, 0.97, bars.remark, transform=where, ha="right", va="top", fontsize=9)


def _draw_horizontal(axes: Axes, bars: BarChart, indices: NDArray[np.int64]) -> None:
    axes.barh(indices + 0.5, bars.values, height=0.72, color=COLOURS[0])
    axes.set_ylim(len(indices), 0)
    label_rows(
        axes,
        HeatMapAxis(
            name=bars.axis, labels=bars.labels, max_label_length=MAX_HORIZONTAL_LABEL_LENGTH
        ),
        len(indices),
    )
    axes.set_xlabel(bars.unit)
    axes.tick_params(axis="y", length=0)


def _draw_outline(axes: Axes, bars: BarChart, indices: NDArray[np.int64]) -> None:
    if (bars.values >= 0).all() and (bars.values > 0).any():
        set_plain_log_scale(axes)
        positive = bars.values[bars.values > 0]
        floor = max(float(positive.min()), float(positive.max()) * 1e-6) / 2
    else:
        floor = 0.0
    axes.fill_between(
        indices + 0.5,
        np.maximum(bars.values, floor),
        floor,
        step="mid",
        color=COLOURS[0],
        alpha=0.8,
    )
    axes.set_xlim(0, len(indices))
    label_columns(axes, HeatMapAxis(name=bars.axis), len(indices))
    axes.set_ylabel(bars.unit)


TABLE_LINE_INCHES = 0.24
"""Line height of a text table, in inches."""


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """Text table: lines of text in columns."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    column_positions: tuple[float, ...]
    """Start of each column, in inches."""

    @property
    def height(self) -> float:
        return TABLE_LINE_INCHES * (len(self.rows) + 1)


def draw_text_table(figure: Figure, listing: TextTable, *, title: str) -> None:
    """Draw a table without rules, its header faint."""
    width, _ = figure.get_size_inches()
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(len(listing.rows) + 1, 0)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11).set_label(TITLE)
    for line, row in enumerate((listing.header, *listing.rows)):
        for start, words in zip(listing.column_positions, row, strict=True):
            alpha = 0.6 if line == 0 else 1.0
            axes.text(start + 0.05, line + 0.5, words, va="center", fontsize=9, alpha=alpha)
