"""Captured model internals prepared for plotting: entry labels, axis titles, orientation, order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lmlab.core.capture import Bounds, Capture
from lmlab.inspection.seriation import (
    Indices,
    order_by_centroid,
    order_by_principal_component,
    order_by_size,
    order_by_transitions,
    stationary_states,
)
from lmlab.plotting.charts import Values, shorten_label

WORD_AXES = ("time", "source")
STATE_AXES = ("state", "next state")
AXIS_PLURALS = {"token": "tokens", "entity": "entities", "fact": "facts"}
"""Axes whose most probable entries are listed, and the entries' name."""
MAX_POSITIONS = 40
"""Most positions shown."""
TOKENS_IN_STATE_NAME = 2
"""Most probable tokens that name a state."""

AXIS_TITLES = {
    "batch": "sentence",
    "move": "positions further",
    "time": "predicted token",
    "source": "input token",
    "distance": "positions back",
    "head": "head",
    "slot": "slot",
    "state": "state",
    "next state": "next state",
    "token": "token",
    "unit": "unit",
    "choice": "choice",
    "entity": "entity",
    "fact": "fact",
}


@dataclass(frozen=True, kw_only=True)
class AxisLabels:
    """Labels of the entries of each axis."""

    token: Callable[[int], str]
    """The text of a vocabulary id."""
    tokens: tuple[str, ...] = ()
    """Tokens of the sequence, start token first; empty without one."""
    sentences: tuple[str, ...] = ()
    """Sentences of the batch, if there are several."""
    states: tuple[str, ...] = ()
    """The most probable tokens of each state, if known."""
    order: Indices | None = field(default=None, compare=False)
    """States by usage, most used first, if known."""

    def entry_labels(self, axis: str, entries: int) -> tuple[str, ...] | None:
        """A label for each entry; None means plain numbers."""
        if axis in WORD_AXES:
            return self._words(axis, entries)
        if axis in STATE_AXES:
            names = self.states if len(self.states) == entries else ("",) * entries
            return tuple(f"{entry} {name}".strip() for entry, name in enumerate(names))
        if axis == "move":
            return tuple(str(entry - entries // 2) for entry in range(entries))
        if axis in ("distance", "slot", "head", "choice"):
            # Distances, slots and heads count from one; choices as the capture's description names
            # them.
            first = 0 if axis == "choice" else 1
            return tuple(str(entry + first) for entry in range(entries))
        if axis == "batch":
            return self.sentences if len(self.sentences) == entries else None
        if axis == "token":
            return tuple(self.token(entry) for entry in range(entries))
        return None

    def axis_title(self, axis: str, entries: int) -> str:
        """Title of the axis."""
        plain = self.tokens and entries in (len(self.tokens), len(self.tokens) - 2)
        return "token" if plain and axis in WORD_AXES else AXIS_TITLES[axis]

    def _words(self, axis: str, entries: int) -> tuple[str, ...]:
        """Inputs are all tokens but the last, predictions all but the first."""
        last = len(self.tokens) - 1
        if self.tokens and entries == last:
            return self.tokens[:-1] if axis == "source" else self.tokens[1:]
        if self.tokens and entries == last + 1:
            return self.tokens
        if self.tokens and entries == last - 1:
            return self.tokens[1:-1]
        first = 0 if axis == "source" else 1
        return tuple(str(first + entry) for entry in range(entries))


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureData:
    """A capture ready to plot: no batch axis, no axis of size one, long axes cut."""

    values: Values
    axes: tuple[str, ...]
    names: tuple[str, ...]
    """Title of each axis."""
    labels: tuple[tuple[str, ...] | None, ...]
    bounds: Bounds
    """Range of the values by definition; sets the colour scale."""
    sums_to_one: str
    """The axis over which the values are a distribution; empty if they are none."""
    sizes: Mapping[str, int]
    """Size of each axis before cutting."""
    unit: str
    notes: tuple[str, ...] = field(default=())

    def select(self, axis: int, indices: Indices, note: str = "") -> FigureData:
        """Some entries of an axis, in the given order."""
        entry_labels = self.labels[axis]
        chosen = None if entry_labels is None else tuple(entry_labels[index] for index in indices)
        labels = (*self.labels[:axis], chosen, *self.labels[axis + 1 :])
        notes = (*self.notes, note) if note else self.notes
        values = np.take(self.values, indices, axis=axis)
        return replace(self, values=values, labels=labels, notes=notes)

    def index(self, axis: int, entry: int) -> FigureData:
        """One entry of an axis; the axis is dropped."""
        after = axis + 1
        return replace(
            self,
            values=np.take(self.values, entry, axis=axis),
            axes=(*self.axes[:axis], *self.axes[after:]),
            names=(*self.names[:axis], *self.names[after:]),
            labels=(*self.labels[:axis], *self.labels[after:]),
        )

    def transposed(self, order: tuple[int, ...]) -> FigureData:
        """The axes in another order."""
        return replace(
            self,
            values=self.values.transpose(order),
            axes=tuple(self.axes[axis] for axis in order),
            names=tuple(self.names[axis] for axis in order),
            labels=tuple(self.labels[axis] for axis in order),
        )


def prepare_capture(capture: Capture, labels: AxisLabels) -> FigureData:
    """Drop axes of size one and cut long sentences; first row of a batch unless rows are named."""
    values = capture.values.detach().double().cpu().numpy()
    values = np.where(np.isneginf(values), np.nan, values)
    # Rounding can leave -1e-13 where a probability is zero.
    values = np.clip(values, *capture.range)
    sizes = axis_sizes(capture)
    data = FigureData(
        values=values,
        axes=capture.axes,
        names=tuple(
            capture.titles.get(axis) or labels.axis_title(axis, size) for axis, size in sizes
        ),
        labels=tuple(
            capture.names.get(axis) or labels.entry_labels(axis, size) for axis, size in sizes
        ),
        bounds=capture.range,
        sums_to_one=capture.sums_to_one,
        sizes=dict(sizes),
        unit=capture.unit,
    )
    for axis in reversed(range(values.ndim)):
        name, size = data.axes[axis], data.values.shape[axis]
        single_row = name == "batch" and not labels.sentences
        # Keep this axis: the single entity of a text still needs its name.
        if single_row or (size == 1 and data.values.ndim > 1 and name not in AXIS_PLURALS):
            data = data.index(axis, 0)
        elif name in WORD_AXES and size > MAX_POSITIONS:
            note = f"Shown are the first {MAX_POSITIONS} of {size} positions."
            note = "" if note in data.notes else note
            data = data.select(axis, np.arange(MAX_POSITIONS), note)
    return data


def axis_sizes(capture: Capture) -> list[tuple[str, int]]:
    """Each axis with its size."""
    return list(zip(capture.axes, capture.values.shape, strict=True))


def state_names(captures: Mapping[str, Capture], labels: AxisLabels) -> tuple[str, ...]:
    """The most probable tokens of each state, if a capture has P(token | state)."""
    for capture in captures.values():
        if set(capture.axes) == {"token", "state"}:
            table = capture.values.detach().double().movedim(capture.axes.index("state"), 0)
            return tuple(_state_name(row, labels) for row in table.cpu().numpy())
    return ()


def _state_name(shares: Values, labels: AxisLabels) -> str:
    """`cat/dog`: the most probable tokens; empty for a state without tokens (a nonterminal)."""
    best = order_by_size(np.nan_to_num(shares, nan=-1.0))[:TOKENS_IN_STATE_NAME]
    return "/".join(shorten_label(labels.token(int(id))) for id in best if shares[id] > 0)


def states_by_usage(captures: Mapping[str, Capture]) -> Indices | None:
    """States by usage (share of the predictions), largest first, if captured."""
    shares = {
        name: capture
        for name, capture in captures.items()
        if capture.axes == ("state",)
        and is_distribution(capture.values.detach().double().cpu().numpy())
    }
    # Prefer the share of the predictions; a prior or the initial state says less.
    for name in sorted(shares, key=lambda name: not name.endswith(" use")):
        return order_by_size(shares[name].values.detach().double().cpu().numpy())
    return None


def is_distribution(values: Values) -> bool:
    """Whether these are probabilities that sum to one."""
    return bool((values >= -1e-6).all() and abs(values.sum() - 1) < 1e-3)


MAX_STATES = 24
"""Most states shown against tokens."""
MAX_MATRIX_SIDE = 20
"""Most states shown along each side of a transition matrix."""
MAX_CHOICES = 48
"""Most columns of choices shown."""


def mask_future(data: FigureData) -> Values:
    """The values with future inputs, which no prediction attends to, left blank."""
    values = data.values
    if data.axes == ("time", "source") and values.shape[0] == values.shape[1]:
        later = np.triu(np.ones_like(values, dtype=bool), k=1)
        if not np.nan_to_num(values[later]).any():
            return np.where(later, np.nan, values)
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class AxisOrder:
    """Which rows and columns are shown, in which order, and a remark."""

    rows: Indices | None = None
    columns: Indices | None = None
    remark: str = ""


def arrange_axes(data: FigureData, state_order: Indices | None) -> FigureData:
    """Tokens on the x-axis; states and units ordered so that structure shows."""
    oriented = orient_matrix(data)
    order = matrix_order(oriented, state_order)
    oriented = replace(oriented, notes=(*oriented.notes, order.remark))
    return reorder_matrix(oriented, order)


def orient_matrix(data: FigureData) -> FigureData:
    """Put inputs, or else tokens, on the x-axis."""
    first, second = data.axes
    flipped = (
        data.axes in (("source", "time"), ("next state", "state"))
        or (first in WORD_AXES and second not in WORD_AXES)
        or (first == "distance" and second not in WORD_AXES)
    )
    return data.transposed((1, 0)) if flipped else data


def matrix_order(data: FigureData, state_order: Indices | None) -> AxisOrder:
    """The order for a matrix's axes; `state_order` lists states by usage, largest first."""
    rows, columns = data.axes
    count = len(data.values)
    if data.axes == STATE_AXES:
        return _order_states(data, state_order)
    if columns == "unit" and rows == "batch" and count > 2:
        return AxisOrder(
            columns=order_by_principal_component(data.values.T), remark=UNIT_ORDER_NOTE
        )
    if columns in ("choice", "state") and rows not in WORD_AXES:
        return _order_columns(data)
    if rows == "unit" and count > 2:
        return AxisOrder(rows=order_by_principal_component(data.values), remark=UNIT_ORDER_NOTE)
    if rows in ("state", "next state", "choice") and columns in WORD_AXES and count > MAX_STATES:
        largest = order_by_size(np.abs(np.nan_to_num(data.values)).sum(1))[:MAX_STATES]
        order = largest[order_by_centroid(data.values[largest])]
        remark = f"Shown are the {MAX_STATES} of {count} {rows}s with most weight here."
        return AxisOrder(rows=order, remark=remark)
    return AxisOrder()


UNIT_ORDER_NOTE = "Units whose values rise and fall together are placed next to each other."


def _order_columns(data: FigureData) -> AxisOrder:
    """The columns with the most mass, in their own order."""
    weights = np.abs(np.nan_to_num(data.values)).sum(0)
    if len(weights) <= MAX_CHOICES:
        return AxisOrder()
    kind = data.axes[1]
    remark = f"Shown are the {MAX_CHOICES} of {len(weights)} {kind}s with most weight here."
    return AxisOrder(columns=np.sort(order_by_size(weights)[:MAX_CHOICES]), remark=remark)


def _order_states(data: FigureData, state_order: Indices | None) -> AxisOrder:
    """The most used states, if usage is known."""
    height, width = data.values.shape
    used = state_order if state_order is not None and len(state_order) == width else None
    return _order_transitions(data, used) if height == width else _order_rules(data, used)


def _order_transitions(data: FigureData, state_order: Indices | None) -> AxisOrder:
    """Transition matrix in an order that follows the transitions."""
    count = len(data.values)
    states = (
        stationary_states(data.values, MAX_MATRIX_SIDE)
        if state_order is None
        else state_order[:MAX_MATRIX_SIDE]
    )
    order = states[order_by_transitions(data.values[np.ix_(states, states)])]
    remark = "States that follow one another are placed next to each other."
    if len(states) < count:
        why = "most visited in the long run" if state_order is None else "most used on these texts"
        remark = f"Shown are the {len(states)} of {count} states {why}. {remark}"
    return AxisOrder(rows=order, columns=order, remark=remark)


def _order_rules(data: FigureData, state_order: Indices | None) -> AxisOrder:
    """Grammar rules: nonterminals (the first symbols) by children (all symbols)."""
    height, width = data.values.shape
    ranks = order_by_size(np.nan_to_num(data.values).sum(0)) if state_order is None else state_order
    rows, columns = (np.sort(ranks[ranks < count][:MAX_MATRIX_SIDE]) for count in (height, width))
    if len(rows) == height and len(columns) == width:
        return AxisOrder()
    why = "with most weight" if state_order is None else "most used on these texts"
    selection = f"{len(rows)} of {height} rows and {len(columns)} of {width} columns"
    return AxisOrder(rows=rows, columns=columns, remark=f"Shown are {selection}, those {why}.")


def reorder_matrix(data: FigureData, order: AxisOrder) -> FigureData:
    """Select the rows and columns of an order."""
    data = data if order.rows is None else data.select(0, order.rows)
    return data if order.columns is None else data.select(1, order.columns)
