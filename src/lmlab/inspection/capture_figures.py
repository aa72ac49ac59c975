"""Figures of captures, chosen by what their axes mean, never by a system's name."""

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
    found = (capture_figure(name, each, labels, text=text) for name, each in captures.items())
    return [picture for picture in found if picture is not None]


def capture_figure(
    name: str, capture: Capture, labels: AxisLabels, *, text: str = ""
) -> FigureSpec | None:
    """The figure that fits a capture's axes; None if there is nothing to show."""
    if any(axis in CHOICE_AXES and size == 1 for axis, size in axis_sizes(capture)):
        return None  # A single alternative is always chosen.
    shown = prepare_capture(capture, labels)
    if shown.values.size < 2 or not np.isfinite(shown.values).any():
        return None
    while shown.values.ndim > 3:
        shown = shown.index(0, 0)
    if shown.values.ndim == 1:
        picture = _vector(shown, title=name)
    elif set(AXIS_PLURALS) & set(shown.axes):
        picture = _words_of(shown, labels.order, title=name)
    elif shown.values.ndim == 2:
        picture = _matrix(shown, labels.order, title=name)
    else:
        picture = _panels(shown, title=name)
    reading = join_remarks((_sentence(capture.caption), picture.caption))
    return replace(picture, name=safe_file_name(name), caption=reading, text=text)


def safe_file_name(name: str) -> str:
    """A portable file name."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name)
    return "-".join(part for part in kept.lower().split("-") if part) or "picture"


def _sentence(reading: str) -> str:
    return reading if reading.rstrip().endswith((".", "!", "?")) else f"{reading.rstrip()}."


def _vector(shown: FigureData, *, title: str) -> FigureSpec:
    """Bar chart; states, units and tokens are sorted by value."""
    [axis], [name], [labels] = shown.axes, shown.names, shown.labels
    values = np.nan_to_num(shown.values)
    order = np.arange(len(values))
    if axis in ("state", "next state", "unit", "token"):
        order = order_by_size(values)
    if axis == "token":
        order = order[:MAX_TOKENS]
    kept, remark, level = values[order], "", None
    if axis in ("state", "next state", "unit", "choice") and is_distribution(values):
        remark = f"effective number {_perplexity(values):.1f} of {len(values)}"
        level = 1 / len(values)
    lying = axis in ("token", "batch") or (
        labels is not None and axis == "state" and len(kept) <= MAX_STATES
    )
    bars = BarChart(
        values=kept,
        labels=None if labels is None else tuple(labels[place] for place in order),
        axis=name + (", largest first" if axis in ("state", "unit") else ""),
        unit=shown.unit or ("share" if is_distribution(values) else "value"),
        remark=remark,
        level=level,
        horizontal=lying,
    )
    dashed = (
        "The dashed line is an equal share; the effective number is e to the power of the entropy."
        if level is not None
        else ""
    )
    wide = min(7.0, max(2.6, 0.34 * len(kept)))
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((dashed, *shown.notes)),
        draw=partial(draw_bar_chart, bars=bars, title=title),
        width=4.6 if lying else wide,
        height=max(1.2, 0.24 * len(kept)) if lying else 2.3,
    )


def _perplexity(shares: Values) -> float:
    """Perplexity, exp(entropy): the effective number of entries."""
    positive = shares[shares > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))


def _token_share(token: str, share: float) -> str:
    return f"{shorten_label(token)} {share:.2g}"


def _name_share(name: str, share: float) -> str:
    return f"{name} {share:.2f}"


def _words_of(shown: FigureData, order: Indices | None, *, title: str) -> FigureSpec:
    """Table of the most probable tokens of each state, choice or position; most used states first.

    Also of entities and facts, of which fewer are listed: their names are long.
    """
    listed = next(each for each in AXIS_PLURALS if each in shown.axes)
    axis = shown.axes.index(listed)
    most, told = (
        (TOKENS_PER_STATE, _token_share) if listed == "token" else (NAMES_PER_STATE, _name_share)
    )
    names, others = shown.labels[axis], tuple(a for a in range(shown.values.ndim) if a != axis)
    assert names is not None
    table = shown.values.transpose(*others, axis).reshape(-1, shown.values.shape[axis])
    kind = shown.names[others[0]]
    labels = shown.labels[others[0]] if len(others) == 1 else None
    states = len(others) == 1 and shown.axes[others[0]] == "state"
    known = states and order is not None and len(order) == len(table)
    rows = []
    for row in (order if known and order is not None else np.arange(len(table)))[:MAX_STATES]:
        values = table[row]
        if np.isnan(values).all():
            continue  # No values at this position.
        best = order_by_size(np.nan_to_num(values, nan=-np.inf))[:most]
        words = " · ".join(told(names[t], values[t]) for t in best if not np.isnan(values[t]))
        rows.append((str(row) if labels is None else shorten_label(labels[row].split()[0]), words))
    header = (kind, f"likeliest {AXIS_PLURALS[listed]}")
    listing = TextTable(header=header, rows=tuple(rows), column_positions=(0.0, 1.0))
    left = len(table) > MAX_STATES
    which = "busiest" if known else "first"
    more = f"Shown are the {which} {MAX_STATES} of {len(table)}." if left else ""
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((more, *shown.notes)),
        draw=partial(draw_text_table, listing=listing, title=title),
        width=8.5,
        height=listing.height,
    )


def _matrix(shown: FigureData, order: Indices | None, *, title: str) -> FigureSpec:
    shown = arrange_axes(shown, order)
    grid = _grid(shown)
    width, height = heat_maps_size([grid])
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((_sums(shown), *shown.notes)),
        draw=partial(draw_heat_maps, grids=[grid], title=title),
        width=width,
        height=height,
    )


def _panels(shown: FigureData, *, title: str) -> FigureSpec:
    """Heat maps, one per entry of an axis, on one colour scale."""
    axis = _panel_axis(shown.axes)
    count, kind = shown.values.shape[axis], shown.names[axis]
    names = shown.labels[axis] or tuple(str(place + 1) for place in range(count))
    chosen = list(range(min(count, MAX_PANELS)))
    # All panels share the order of their mean, so that they compare.
    mean = replace(shown.index(axis, 0), values=np.nanmean(shown.values, axis=axis))
    order = matrix_order(orient_matrix(mean), None)
    panels = [reorder_matrix(orient_matrix(shown.index(axis, place)), order) for place in chosen]
    grids = [
        _grid(panel, f"{kind} {names[place]}") for place, panel in zip(chosen, panels, strict=True)
    ]
    width, height = heat_maps_size(grids)
    more = "" if count <= MAX_PANELS else f"Shown are {MAX_PANELS} of {count} heat maps."
    return FigureSpec(
        name="",
        title=title,
        caption=join_remarks((_sums(panels[0]), order.remark, more, *shown.notes)),
        draw=partial(draw_heat_maps, grids=grids, title=title),
        width=width,
        height=height,
    )


def _panel_axis(axes: tuple[str, ...]) -> int:
    needed = next((pair for pair in MATRIX_AXES if set(pair) <= set(axes)), ())
    for name in PANEL_AXIS_PRIORITY:
        if name in axes and name not in needed:
            return axes.index(name)
    return 0


def _grid(shown: FigureData, title: str = "") -> HeatMap:
    values = mask_future(shown)
    rows, columns = (
        HeatMapAxis(name=name, labels=labels, max_label_length=_longest(axis))
        for axis, name, labels in zip(shown.axes, shown.names, shown.labels, strict=True)
    )
    small = title or (len(values) > MAX_STATES and rows.labels is not None)
    cell = SMALL_CELL_INCHES if small else HeatMap.cell
    return HeatMap(
        values=values, rows=rows, columns=columns, title=title, cell=cell, bounds=shown.bounds
    )


def _longest(axis: str) -> int:
    """Most characters of a label."""
    if axis == "batch":
        return MAX_HORIZONTAL_LABEL_LENGTH
    return MAX_STATE_LABEL_LENGTH if axis in STATE_AXES else MAX_LABEL_LENGTH


def _sums(shown: FigureData) -> str:
    """Whether rows or columns sum to one, for the matrix as plotted."""
    if shown.sums_to_one not in shown.axes:
        return ""
    along = shown.axes.index(shown.sums_to_one)
    drawn, whole = shown.values.shape[along], shown.sizes[shown.sums_to_one]
    over = f" over all {whole}, of which {drawn} are shown" if drawn < whole else ""
    return f"Each {('column', 'row')[along]} sums to 1{over}."
