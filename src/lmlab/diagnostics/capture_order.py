"""Which rows and columns of a matrix are drawn, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lmlab.diagnostics.capture_labels import STATE_AXES, WORD_AXES, Shown
from lmlab.diagnostics.grids import Values
from lmlab.diagnostics.ordering import (
    Places,
    by_centre,
    by_flow,
    by_likeness,
    by_size,
    most_visited,
)

MOST_STATES = 24
"""States beside words that are drawn."""
MOST_MATRIX = 20
"""States along each side of a matrix of states that are drawn."""
MOST_CHOICES = 48
"""Columns of choices that are drawn."""


def without_future(shown: Shown) -> Values:
    """Inputs that no prediction looks at because they come later are left blank."""
    values = shown.values
    if shown.axes == ("time", "source") and values.shape[0] == values.shape[1]:
        later = np.triu(np.ones_like(values, dtype=bool), k=1)
        if not np.nan_to_num(values[later]).any():
            return np.where(later, np.nan, values)
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """Which rows and columns are drawn, in which order, and a sentence about it."""

    rows: Places | None = None
    columns: Places | None = None
    remark: str = ""


def arranged(shown: Shown, busiest: Places | None) -> Shown:
    """Words along the bottom, states and units in an order that lets structure show."""
    turned = oriented(shown)
    order = order_of(turned, busiest)
    turned = replace(turned, remarks=(*turned.remarks, order.remark))
    return reordered(turned, order)


def oriented(shown: Shown) -> Shown:
    """Rows and columns: inputs, and else words, along the bottom."""
    first, second = shown.axes
    flipped = (
        shown.axes in (("source", "time"), ("next state", "state"))
        or (first in WORD_AXES and second not in WORD_AXES)
        or (first == "distance" and second not in WORD_AXES)
    )
    return shown.moved((1, 0)) if flipped else shown


def order_of(shown: Shown, busiest: Places | None) -> Order:
    """The order that a matrix's axes ask for; `busiest` are states by use, largest first."""
    rows, columns = shown.axes
    count = len(shown.values)
    if shown.axes == STATE_AXES:
        return _of_states(shown, busiest)
    if columns == "unit" and rows == "batch" and count > 2:
        return Order(columns=by_likeness(shown.values.T), remark=UNITS_REMARK)
    if columns in ("choice", "state") and rows not in WORD_AXES:
        return _of_columns(shown)
    if rows == "unit" and count > 2:
        return Order(rows=by_likeness(shown.values), remark=UNITS_REMARK)
    if rows in ("state", "next state", "choice") and columns in WORD_AXES and count > MOST_STATES:
        heaviest = by_size(np.abs(np.nan_to_num(shown.values)).sum(1))[:MOST_STATES]
        order = heaviest[by_centre(shown.values[heaviest])]
        remark = f"Shown are the {MOST_STATES} of {count} {rows}s with most weight here."
        return Order(rows=order, remark=remark)
    return Order()


UNITS_REMARK = "Units whose values rise and fall together are placed next to each other."


def _of_columns(shown: Shown) -> Order:
    """Of many columns those with most weight, in their own order."""
    weights = np.abs(np.nan_to_num(shown.values)).sum(0)
    if len(weights) <= MOST_CHOICES:
        return Order()
    kind = shown.axes[1]
    remark = f"Shown are the {MOST_CHOICES} of {len(weights)} {kind}s with most weight here."
    return Order(columns=np.sort(by_size(weights)[:MOST_CHOICES]), remark=remark)


def _of_states(shown: Shown, busiest: Places | None) -> Order:
    """Of many states those that matter: the most used on the texts, where the use is known."""
    height, width = shown.values.shape
    used = busiest if busiest is not None and len(busiest) == width else None
    return _of_transitions(shown, used) if height == width else _of_rules(shown, used)


def _of_transitions(shown: Shown, used: Places | None) -> Order:
    """States by states, in an order that follows the transitions."""
    count = len(shown.values)
    kept = most_visited(shown.values, MOST_MATRIX) if used is None else used[:MOST_MATRIX]
    order = kept[by_flow(shown.values[np.ix_(kept, kept)])]
    remark = "States that follow one another are placed next to each other."
    if len(kept) < count:
        why = "most visited in the long run" if used is None else "most used on these texts"
        remark = f"Shown are the {len(kept)} of {count} states {why}. {remark}"
    return Order(rows=order, columns=order, remark=remark)


def _of_rules(shown: Shown, used: Places | None) -> Order:
    """Nonterminals, which are the first symbols, by their children, which are all of them."""
    height, width = shown.values.shape
    ranks = by_size(np.nan_to_num(shown.values).sum(0)) if used is None else used
    rows, columns = (np.sort(ranks[ranks < count][:MOST_MATRIX]) for count in (height, width))
    if len(rows) == height and len(columns) == width:
        return Order()
    why = "with most weight" if used is None else "most used on these texts"
    some = f"{len(rows)} of {height} rows and {len(columns)} of {width} columns"
    return Order(rows=rows, columns=columns, remark=f"Shown are {some}, those {why}.")


def reordered(shown: Shown, order: Order) -> Shown:
    """The rows and columns of an order."""
    shown = shown if order.rows is None else shown.take(0, order.rows)
    return shown if order.columns is None else shown.take(1, order.columns)
