"""Captures prepared for plotting: entry labels, axis titles, orientation and order."""

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
            return tuple(f"{place} {name}".strip() for place, name in enumerate(names))
        if axis == "move":
            return tuple(str(place - entries // 2) for place in range(entries))
        if axis in ("distance", "slot", "head", "choice"):
            # Distances, slots and heads count from one; choices as the capture's description names
            # them.
            first = 0 if axis == "choice" else 1
            return tuple(str(place + first) for place in range(entries))
        if axis == "batch":
            return self.sentences if len(self.sentences) == entries else None
        if axis == "token":
            return tuple(self.token(place) for place in range(entries))
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
        return tuple(str(first + place) for place in range(entries))


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

    def select(self, axis: int, places: Indices, remark: str = "") -> FigureData:
        """Some entries of an axis, in the given order."""
        named = self.labels[axis]
        chosen = None if named is None else tuple(named[place] for place in places)
        labels = (*self.labels[:axis], chosen, *self.labels[axis + 1 :])
        remarks = (*self.notes, remark) if remark else self.notes
        values = np.take(self.values, places, axis=axis)
        return replace(self, values=values, labels=labels, notes=remarks)

    def index(self, axis: int, place: int) -> FigureData:
        """One entry of an axis; the axis is dropped."""
        drop = lambda kept: (*kept[:axis], *kept[axis + 1 :])  # noqa: E731
        return replace(
            self,
            values=np.take(self.values, place, axis=axis),
            axes=drop(self.axes),
            names=drop(self.names),
            labels=drop(self.labels),
        )

    def transposed(self, order: tuple[int, ...]) -> FigureData:
        """The axes in another order."""
        return replace(
            self,
            values=self.values.transpose(order),
            axes=tuple(self.axes[place] for place in order),
            names=tuple(self.names[place] for place in order),
            labels=tuple(self.labels[place] for place in order),
        )


def prepare_capture(capture: Capture, labels: AxisLabels) -> FigureData:
    """Drop axes of size one and cut long sentences; first row of a batch unless rows are named."""
    values = capture.values.detach().double().cpu().numpy()
    values = np.where(np.isneginf(values), np.nan, values)
    # Rounding can leave -1e-13 where a probability is zero.
    values = np.clip(values, *capture.range)
    sizes = axis_sizes(capture)
    shown = FigureData(
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
        name, size = shown.axes[axis], shown.values.shape[axis]
        alone = name == "batch" and not labels.sentences
        # Keep this axis: the single entity of a text still needs its name.
        if alone or (size == 1 and shown.values.ndim > 1 and name not in AXIS_PLURALS):
            shown = shown.index(axis, 0)
        elif name in WORD_AXES and size > MAX_POSITIONS:
            remark = f"Shown are the first {MAX_POSITIONS} of {size} positions."
            remark = "" if remark in shown.notes else remark
            shown = shown.select(axis, np.arange(MAX_POSITIONS), remark)
    return shown


def axis_sizes(capture: Capture) -> list[tuple[str, int]]:
    """Each axis with its size."""
    return list(zip(capture.axes, capture.values.shape, strict=True))


def state_names(captures: Mapping[str, Capture], labels: AxisLabels) -> tuple[str, ...]:
    """The most probable tokens of each state, if a capture has P(token | state)."""
    for capture in captures.values():
        if set(capture.axes) == {"token", "state"}:
            table = capture.values.detach().double().movedim(capture.axes.index("state"), 0)
            return tuple(_name_of(row, labels) for row in table.cpu().numpy())
    return ()


def _name_of(shares: Values, labels: AxisLabels) -> str:
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


def mask_future(shown: FigureData) -> Values:
    """The values with future inputs, which no prediction attends to, left blank."""
    values = shown.values
    if shown.axes == ("time", "source") and values.shape[0] == values.shape[1]:
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


def arrange_axes(shown: FigureData, busiest: Indices | None) -> FigureData:
    """Tokens on the x-axis; states and units ordered so that structure shows."""
    turned = orient_matrix(shown)
    order = matrix_order(turned, busiest)
    turned = replace(turned, notes=(*turned.notes, order.remark))
    return reorder_matrix(turned, order)


def orient_matrix(shown: FigureData) -> FigureData:
    """Put inputs, or else tokens, on the x-axis."""
    first, second = shown.axes
    flipped = (
        shown.axes in (("source", "time"), ("next state", "state"))
        or (first in WORD_AXES and second not in WORD_AXES)
        or (first == "distance" and second not in WORD_AXES)
    )
    return shown.transposed((1, 0)) if flipped else shown


def matrix_order(shown: FigureData, busiest: Indices | None) -> AxisOrder:
    """The order for a matrix's axes; `busiest` lists states by usage, largest first."""
    rows, columns = shown.axes
    count = len(shown.values)
    if shown.axes == STATE_AXES:
        return _of_states(shown, busiest)
    if columns == "unit" and rows == "batch" and count > 2:
        return AxisOrder(
            columns=order_by_principal_component(shown.values.T), remark=UNIT_ORDER_NOTE
        )
    if columns in ("choice", "state") and rows not in WORD_AXES:
        return _of_columns(shown)
    if rows == "unit" and count > 2:
        return AxisOrder(rows=order_by_principal_component(shown.values), remark=UNIT_ORDER_NOTE)
    if rows in ("state", "next state", "choice") and columns in WORD_AXES and count > MAX_STATES:
        heaviest = order_by_size(np.abs(np.nan_to_num(shown.values)).sum(1))[:MAX_STATES]
        order = heaviest[order_by_centroid(shown.values[heaviest])]
        remark = f"Shown are the {MAX_STATES} of {count} {rows}s with most weight here."
        return AxisOrder(rows=order, remark=remark)
    return AxisOrder()


UNIT_ORDER_NOTE = "Units whose values rise and fall together are placed next to each other."


def _of_columns(shown: FigureData) -> AxisOrder:
    """The columns with the most mass, in their own order."""
    weights = np.abs(np.nan_to_num(shown.values)).sum(0)
    if len(weights) <= MAX_CHOICES:
        return AxisOrder()
    kind = shown.axes[1]
    remark = f"Shown are the {MAX_CHOICES} of {len(weights)} {kind}s with most weight here."
    return AxisOrder(columns=np.sort(order_by_size(weights)[:MAX_CHOICES]), remark=remark)


def _of_states(shown: FigureData, busiest: Indices | None) -> AxisOrder:
    """The most used states, if usage is known."""
    height, width = shown.values.shape
    used = busiest if busiest is not None and len(busiest) == width else None
    return _of_transitions(shown, used) if height == width else _of_rules(shown, used)


def _of_transitions(shown: FigureData, used: Indices | None) -> AxisOrder:
    """Transition matrix in an order that follows the transitions."""
    count = len(shown.values)
    kept = (
        stationary_states(shown.values, MAX_MATRIX_SIDE) if used is None else used[:MAX_MATRIX_SIDE]
    )
    order = kept[order_by_transitions(shown.values[np.ix_(kept, kept)])]
    remark = "States that follow one another are placed next to each other."
    if len(kept) < count:
        why = "most visited in the long run" if used is None else "most used on these texts"
        remark = f"Shown are the {len(kept)} of {count} states {why}. {remark}"
    return AxisOrder(rows=order, columns=order, remark=remark)


def _of_rules(shown: FigureData, used: Indices | None) -> AxisOrder:
    """Grammar rules: nonterminals (the first symbols) by children (all symbols)."""
    height, width = shown.values.shape
    ranks = order_by_size(np.nan_to_num(shown.values).sum(0)) if used is None else used
    rows, columns = (np.sort(ranks[ranks < count][:MAX_MATRIX_SIDE]) for count in (height, width))
    if len(rows) == height and len(columns) == width:
        return AxisOrder()
    why = "with most weight" if used is None else "most used on these texts"
    some = f"{len(rows)} of {height} rows and {len(columns)} of {width} columns"
    return AxisOrder(rows=rows, columns=columns, remark=f"Shown are {some}, those {why}.")


def reorder_matrix(shown: FigureData, order: AxisOrder) -> FigureData:
    """Select the rows and columns of an order."""
    shown = shown if order.rows is None else shown.select(0, order.rows)
    return shown if order.columns is None else shown.select(1, order.columns)
