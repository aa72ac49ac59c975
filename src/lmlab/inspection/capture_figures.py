"""Figures of captured model internals (heat maps, bars, token tables), chosen by their axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from lmlab.core.capture import Capture
from lmlab.inspection.capture_axes import (
    AXIS_PLURALS,
    MAX_STATES,
    STATE_AXES,
    AxisLabels,
    FigureData,
    arrange_axes,
    axis_sizes,
    is_distribution,
    mask_future,
    matrix_order,
    orient_matrix,
    prepare_capture,
    reorder_matrix,
    states_by_usage,
)
from lmlab.inspection.seriation import Indices, order_by_size
from lmlab.plotting.charts import (
    MAX_HORIZONTAL_LABEL_LENGTH,
    MAX_LABEL_LENGTH,
    SMALL_CELL_INCHES,
    BarChart,
    HeatMap,
    HeatMapAxis,
    TextTable,
    Values,
    draw_bar_chart,
    draw_heat_maps,
    draw_text_table,
    heat_maps_size,
    shorten_label,
)
from lmlab.plotting.figure import FigureSpec, join_remarks

MAX_STATE_LABEL_LENGTH = 22
"""Characters of a state's number and tokens."""
MAX_PANELS = 6
MAX_TOKENS = 20
TOKENS_PER_STATE = 8
NAMES_PER_STATE = 3
CHOICE_AXES = ("state", "next state", "choice")
"""Axes of a choice between alternatives."""
PANEL_AXIS_PRIORITY = (
    "head",
    "slot",
    "choice",
    "distance",
    "state",
    "next state",
    "unit",
    "time",
    "source",
)
"""Which of three axes is split into panels: the first that is not needed otherwise."""
MATRIX_AXES = (("time", "source"), ("state", "next state"))
"""Axes that belong on one heat map."""


def capture_figures(
    captures: Mapping[str, Capture], labels: AxisLabels, *, text: str = ""
) -> list[FigureSpec]:
    """A figure for each capture with more than one value."""
    labels = replace(labels, order=states_by_usage(captures))
    figures = (capture_figure(name, c, labels, text=text) for name, c in captures.items())
    return [figure for figure in figures if figure is not None]


def capture_figure(
    name: str, capture: Capture, labels: AxisLabels, *, text: str = ""
) -> FigureSpec | None:
    """The figure that fits a capture's axes; None if there is nothing to show."""
    if any(axis in CHOICE_AXES and size == 1 for axis, size in axis_sizes(capture)):
        return None  # A single alternative is always chosen.
    data = prepare_capture(capture, labels)
    if data.values.size < 2 or not np.isfinite(data.values).any():
        return None
    while data.values.ndim > 3:
        data = data.index(0, 0)
    if data.values.ndim == 1:
        figure = _vector(data, title=name)
    elif set(AXIS_PLURALS) & set(data.axes):
        figure = _token_table(data, labels.order, title=name)
    elif data.values.ndim == 2:
        figure = _matrix(data, labels.order, title=name)
    else:
        figure = _panels(data, title=name)
    caption = join_remarks((_sentence(capture.caption), figure.caption))
    return replace(figure, name=safe_file_name(name), caption=caption, text=text)


def safe_file_name(name: str) -> str:
    """A portable file name."""
    slug = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name)
    return "-".join(part for part in slug.lower().split("-") if part) or "picture"


def _sentence(caption: str) -> str:
    return caption if caption.rstrip().endswith((".", "!", "?")) else f"{caption.rstrip()}."


def _vector(data: FigureData, *, title: str) -> FigureSpec:
    """Bar chart; states, units and tokens are sorted by value."""
    [axis], [name], [labels] = data.axes, data.names, data.labels
    values = np.nan_to_num(data.values)
    order = np.arange(len(values))
    if axis in ("state", "next state", "unit", "token"):
        order = order_by_size(values)
    if axis == "token":
        order = order[:MAX_TOKENS]
    sorted_values, remark, level = values[order], "", None
    if axis in ("state", "next state", "unit", "choice") and is_distribution(values):
        remark = f"effective number {_perplexity(values):.1f} of {len(values)}"
        level = 1 / len(values)
    horizontal = axis in ("token", "batch") or (
        labels is not None and axis == "state" and len(sorted_values) <= MAX_STATES
    )
    bars = BarChart(
        values=sorted_values,
        labels=None if labels is None else tuple(labels[index] for index in order),
        axis=name + (", largest first" if axis in ("state", "unit") else ""),
        unit=data.unit or ("share" if is_distribution(values) else "value"),
        remark=remark,
        level=level,
        horizontal=horizontal,
    )
    level_note = (
        "The dashed line is an equal share; the effective number is e to the power of the entropy."
        if level is not None
        else ""
    )
    wide = min(7.0, max(2.6, 0.34 * len(sorted_values)))
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((level_note, *data.notes)),
        draw=partial(draw_bar_chart, bars=bars, title=title),
        width=4.6 if horizontal else wide,
        height=max(1.2, 0.24 * len(sorted_values)) if horizontal else 2.3,
    )


def _perplexity(shares: Values) -> float:
    """Perplexity, exp(entropy): the effective number of entries."""
    positive = shares[shares > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))


def _token_share(token: str, share: float) -> str:
    return f"{shorten_label(token)} {share:.2g}"


def _name_share(name: str, share: float) -> str:
    return f"{name} {share:.2f}"


def _token_table(data: FigureData, order: Indices | None, *, title: str) -> FigureSpec:
    """Table of the most probable tokens of each state, choice or position; most used states first.

    Also of entities and facts, of which fewer are listed: their names are long.
    """
    listed = next(axis_name for axis_name in AXIS_PLURALS if axis_name in data.axes)
    axis = data.axes.index(listed)
    max_entries, spell = (
        (TOKENS_PER_STATE, _token_share) if listed == "token" else (NAMES_PER_STATE, _name_share)
    )
    names, other_axes = data.labels[axis], tuple(a for a in range(data.values.ndim) if a != axis)
    assert names is not None
    table = data.values.transpose(*other_axes, axis).reshape(-1, data.values.shape[axis])
    kind = data.names[other_axes[0]]
    labels = data.labels[other_axes[0]] if len(other_axes) == 1 else None
    states = len(other_axes) == 1 and data.axes[other_axes[0]] == "state"
    by_usage = states and order is not None and len(order) == len(table)
    rows = []
    for row in (order if by_usage and order is not None else np.arange(len(table)))[:MAX_STATES]:
        values = table[row]
        if np.isnan(values).all():
            continue  # No values at this position.
        best = order_by_size(np.nan_to_num(values, nan=-np.inf))[:max_entries]
        words = " · ".join(spell(names[t], values[t]) for t in best if not np.isnan(values[t]))
        rows.append((str(row) if labels is None else shorten_label(labels[row].split()[0]), words))
    header = (kind, f"likeliest {AXIS_PLURALS[listed]}")
    listing = TextTable(header=header, rows=tuple(rows), column_positions=(0.0, 1.0))
    truncated = len(table) > MAX_STATES
    selection = "busiest" if by_usage else "first"
    note = f"Shown are the {selection} {MAX_STATES} of {len(table)}." if truncated else ""
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((note, *data.notes)),
        draw=partial(draw_text_table, listing=listing, title=title),
        width=8.5,
        height=listing.height,
        fixed_layout=True,
    )


def _matrix(data: FigureData, order: Indices | None, *, title: str) -> FigureSpec:
    data = arrange_axes(data, order)
    grid = _grid(data)
    width, height = heat_maps_size([grid])
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((_sum_note(data), *data.notes)),
        draw=partial(draw_heat_maps, grids=[grid], title=title),
        width=width,
        height=height,
    )


def _panels(data: FigureData, *, title: str) -> FigureSpec:
    """Heat maps, one per entry of an axis, on one colour scale."""
    axis = _panel_axis(data.axes)
    count, kind = data.values.shape[axis], data.names[axis]
    names = data.labels[axis] or tuple(str(entry + 1) for entry in range(count))
    chosen = list(range(min(count, MAX_PANELS)))
    # All panels share the order of their mean, so that they compare.
    mean = replace(data.index(axis, 0), values=np.nanmean(data.values, axis=axis))
    order = matrix_order(orient_matrix(mean), None)
    panels = [reorder_matrix(orient_matrix(data.index(axis, entry)), order) for entry in chosen]
    grids = [
        _grid(panel, f"{kind} {names[entry]}") for entry, panel in zip(chosen, panels, strict=True)
    ]
    width, height = heat_maps_size(grids)
    note = "" if count <= MAX_PANELS else f"Shown are {MAX_PANELS} of {count} heat maps."
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((_sum_note(panels[0]), order.remark, note, *data.notes)),
        draw=partial(draw_heat_maps, grids=grids, title=title),
        width=width,
        height=height,
    )


def _panel_axis(axes: tuple[str, ...]) -> int:
    matrix_axes = next((pair for pair in MATRIX_AXES if set(pair) <= set(axes)), ())
    for name in PANEL_AXIS_PRIORITY:
        if name in axes and name not in matrix_axes:
            return axes.index(name)
    return 0


def _grid(data: FigureData, title: str = "") -> HeatMap:
    values = mask_future(data)
    rows, columns = (
        HeatMapAxis(name=name, labels=labels, max_label_length=_max_label_length(axis))
        for axis, name, labels in zip(data.axes, data.names, data.labels, strict=True)
    )
    small = title or (len(values) > MAX_STATES and rows.labels is not None)
    cell = SMALL_CELL_INCHES if small else HeatMap.cell
    return HeatMap(
        values=values, rows=rows, columns=columns, title=title, cell=cell, bounds=data.bounds
    )


def _max_label_length(axis: str) -> int:
    """Most characters of a label."""
    if axis == "batch":
        return MAX_HORIZONTAL_LABEL_LENGTH
    return MAX_STATE_LABEL_LENGTH if axis in STATE_AXES else MAX_LABEL_LENGTH


def _sum_note(data: FigureData) -> str:
    """Whether rows or columns sum to one, for the matrix as plotted."""
    if data.sums_to_one not in data.axes:
        return ""
    along = data.axes.index(data.sums_to_one)
    plotted, total = data.values.shape[along], data.sizes[data.sums_to_one]
    over = f" over all {total}, of which {plotted} are shown" if plotted < total else ""
    return f"Each {('column', 'row')[along]} sums to 1{over}."
