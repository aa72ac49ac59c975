"""Inner values made ready for a figure: labels of their entries, titles of their axes."""

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
from lmlab.plotting.charts import (
    Values,
    shorten_label,
)

WORD_AXES = ("time", "source")
STATE_AXES = ("state", "next state")
AXIS_PLURALS = {"token": "tokens", "entity": "entities", "fact": "facts"}
"""Axes of which the likeliest entries are listed, and what these are called."""
MAX_POSITIONS = 40
"""Positions of a sentence that are drawn."""
TOKENS_IN_STATE_NAME = 2
"""Words that a state is named by, the likeliest first."""

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
    """What the entries of an axis are called."""

    token: Callable[[int], str]
    """The text of an id of the vocabulary."""
    tokens: tuple[str, ...] = ()
    """Of the sequence that is shown, the opening symbol first; empty where none is."""
    sentences: tuple[str, ...] = ()
    """Of the batch, where there are several."""
    states: tuple[str, ...] = ()
    """The likeliest words of each state, where they are known."""
    order: Indices | None = field(default=None, compare=False)
    """States, the busiest first, where it is known."""

    def entry_labels(self, axis: str, entries: int) -> tuple[str, ...] | None:
        """A name for each entry; None where numbers must do."""
        if axis in WORD_AXES:
            return self._words(axis, entries)
        if axis in STATE_AXES:
            names = self.states if len(self.states) == entries else ("",) * entries
            return tuple(f"{place} {name}".strip() for place, name in enumerate(names))
        if axis == "move":
            return tuple(str(place - entries // 2) for place in range(entries))
        if axis in ("distance", "slot", "head", "choice"):
            # Distances, slots and heads are counted from one, choices as their reading names them.
            first = 0 if axis == "choice" else 1
            return tuple(str(place + first) for place in range(entries))
        if axis == "batch":
            return self.sentences if len(self.sentences) == entries else None
        if axis == "token":
            return tuple(self.token(place) for place in range(entries))
        return None

    def axis_title(self, axis: str, entries: int) -> str:
        """What the axis is called."""
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
    """An inner value made ready to be drawn: no batch, nothing of one entry, not too long."""

    values: Values
    axes: tuple[str, ...]
    names: tuple[str, ...]
    """What each axis is called in the picture."""
    labels: tuple[tuple[str, ...] | None, ...]
    bounds: Bounds
    """The interval of the values, by definition; it decides the colour scale."""
    sums_to_one: str
    """The axis that the values are a distribution over; empty where they are none."""
    sizes: Mapping[str, int]
    """Entries of each axis before any was left out."""
    unit: str
    notes: tuple[str, ...] = field(default=())

    def select(self, axis: int, places: Indices, remark: str = "") -> FigureData:
        """Some entries of an axis, in that order."""
        named = self.labels[axis]
        chosen = None if named is None else tuple(named[place] for place in places)
        labels = (*self.labels[:axis], chosen, *self.labels[axis + 1 :])
        remarks = (*self.notes, remark) if remark else self.notes
        values = np.take(self.values, places, axis=axis)
        return replace(self, values=values, labels=labels, notes=remarks)

    def index(self, axis: int, place: int) -> FigureData:
        """One entry of an axis, which so disappears."""
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
    """Without axes of one entry, long sentences cut; the first of a batch unless all are named."""
    values = capture.values.detach().double().cpu().numpy()
    values = np.where(np.isneginf(values), np.nan, values)
    # Rounding leaves -1e-13 of a probability, which is no value below zero.
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
        # The only entity that a text names is still to be named.
        if alone or (size == 1 and shown.values.ndim > 1 and name not in AXIS_PLURALS):
            shown = shown.index(axis, 0)
        elif name in WORD_AXES and size > MAX_POSITIONS:
            remark = f"Shown are the first {MAX_POSITIONS} of {size} positions."
            remark = "" if remark in shown.notes else remark
            shown = shown.select(axis, np.arange(MAX_POSITIONS), remark)
    return shown


def axis_sizes(capture: Capture) -> list[tuple[str, int]]:
    """Each axis with its number of entries."""
    return list(zip(capture.axes, capture.values.shape, strict=True))


def state_names(captures: Mapping[str, Capture], labels: AxisLabels) -> tuple[str, ...]:
    """The likeliest tokens of each state, where a capture has P(token | state)."""
    for capture in captures.values():
        if set(capture.axes) == {"token", "state"}:
            table = capture.values.detach().double().movedim(capture.axes.index("state"), 0)
            return tuple(_name_of(row, labels) for row in table.cpu().numpy())
    return ()


def _name_of(shares: Values, labels: AxisLabels) -> str:
    """`cat/dog`: the likeliest tokens; nothing for a state without tokens (a nonterminal)."""
    best = order_by_size(np.nan_to_num(shares, nan=-1.0))[:TOKENS_IN_STATE_NAME]
    return "/".join(shorten_label(labels.token(int(id))) for id in best if shares[id] > 0)


def states_by_usage(captures: Mapping[str, Capture]) -> Indices | None:
    """States by their share of the predictions, largest first, where a capture has it."""
    shares = {
        name: capture
        for name, capture in captures.items()
        if capture.axes == ("state",)
        and is_distribution(capture.values.detach().double().cpu().numpy())
    }
    # A share of the predictions is called a use; a prior or the first state's says less.
    for name in sorted(shares, key=lambda name: not name.endswith(" use")):
        return order_by_size(shares[name].values.detach().double().cpu().numpy())
    return None


def is_distribution(values: Values) -> bool:
    """Whether these are probabilities that sum to one."""
    return bool((values >= -1e-6).all() and abs(values.sum() - 1) < 1e-3)


MAX_STATES = 24
"""States beside words that are drawn."""
MAX_MATRIX_SIDE = 20
"""States along each side of a matrix of states that are drawn."""
MAX_CHOICES = 48
"""Columns of choices that are drawn."""


def mask_future(shown: FigureData) -> Values:
    """Inputs that no prediction looks at because they come later are left blank."""
    values = shown.values
    if shown.axes == ("time", "source") and values.shape[0] == values.shape[1]:
        later = np.triu(np.ones_like(values, dtype=bool), k=1)
        if not np.nan_to_num(values[later]).any():
            return np.where(later, np.nan, values)
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class AxisOrder:
    """Which rows and columns are drawn, in which order, and a sentence about it."""

    rows: Indices | None = None
    columns: Indices | None = None
    remark: str = ""


def arrange_axes(shown: FigureData, busiest: Indices | None) -> FigureData:
    """Words along the bottom, states and units in an order that lets structure show."""
    turned = orient_matrix(shown)
    order = matrix_order(turned, busiest)
    turned = replace(turned, notes=(*turned.notes, order.remark))
    return reorder_matrix(turned, order)


def orient_matrix(shown: FigureData) -> FigureData:
    """Rows and columns: inputs, and else words, along the bottom."""
    first, second = shown.axes
    flipped = (
        shown.axes in (("source", "time"), ("next state", "state"))
        or (first in WORD_AXES and second not in WORD_AXES)
        or (first == "distance" and second not in WORD_AXES)
    )
    return shown.transposed((1, 0)) if flipped else shown


def matrix_order(shown: FigureData, busiest: Indices | None) -> AxisOrder:
    """The order that a matrix's axes ask for; `busiest` are states by use, largest first."""
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
    """Of many columns those with most weight, in their own order."""
    weights = np.abs(np.nan_to_num(shown.values)).sum(0)
    if len(weights) <= MAX_CHOICES:
        return AxisOrder()
    kind = shown.axes[1]
    remark = f"Shown are the {MAX_CHOICES} of {len(weights)} {kind}s with most weight here."
    return AxisOrder(columns=np.sort(order_by_size(weights)[:MAX_CHOICES]), remark=remark)


def _of_states(shown: FigureData, busiest: Indices | None) -> AxisOrder:
    """Of many states those that matter: the most used on the texts, where the use is known."""
    height, width = shown.values.shape
    used = busiest if busiest is not None and len(busiest) == width else None
    return _of_transitions(shown, used) if height == width else _of_rules(shown, used)


def _of_transitions(shown: FigureData, used: Indices | None) -> AxisOrder:
    """States by states, in an order that follows the transitions."""
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
    """Nonterminals, which are the first symbols, by their children, which are all of them."""
    height, width = shown.values.shape
    ranks = order_by_size(np.nan_to_num(shown.values).sum(0)) if used is None else used
    rows, columns = (np.sort(ranks[ranks < count][:MAX_MATRIX_SIDE]) for count in (height, width))
    if len(rows) == height and len(columns) == width:
        return AxisOrder()
    why = "with most weight" if used is None else "most used on these texts"
    some = f"{len(rows)} of {height} rows and {len(columns)} of {width} columns"
    return AxisOrder(rows=rows, columns=columns, remark=f"Shown are {some}, those {why}.")


def reorder_matrix(shown: FigureData, order: AxisOrder) -> FigureData:
    """The rows and columns of an order."""
    shown = shown if order.rows is None else shown.select(0, order.rows)
    return shown if order.columns is None else shown.select(1, order.columns)
