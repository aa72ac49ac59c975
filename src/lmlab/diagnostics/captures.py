"""Inner values as pictures, chosen by what their axes mean and never by a system's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from lmlab.core.capture import Capture
from lmlab.diagnostics.grids import (
    LONGEST_LABEL,
    LONGEST_LYING,
    SMALL_CELL,
    Axis,
    Bars,
    Grid,
    Listing,
    Values,
    draw_bars,
    draw_grids,
    draw_listing,
    grids_size,
    short_label,
)
from lmlab.diagnostics.ordering import (
    Places,
    by_centre,
    by_flow,
    by_likeness,
    by_size,
    most_visited,
)
from lmlab.diagnostics.picture import Picture, in_a_row

WORD_AXES = ("time", "source")
MOST_PLACES = 40
"""Places of a sentence that are drawn."""
MOST_STATES = 24
"""States drawn beside words, the busiest."""
MOST_MATRIX = 48
"""States of a transition matrix that are drawn, the most visited."""
MOST_PANELS = 6
MOST_TOKENS = 20
WORDS_A_STATE = 8
FEW_NAMES = 3
LISTED = {"token": "tokens", "entity": "entities", "fact": "facts"}
"""Axes of which the likeliest entries are listed, and what these are called."""
CHOSEN = ("state", "next state", "choice")
"""Axes along which one of several ways is taken."""
PANEL_FIRST = (
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
"""Which of three axes becomes a heat map for each entry, the first that is not needed otherwise."""
PAIRS = (("time", "source"), ("state", "next state"))
"""Axes that belong on one heat map."""

AXIS_NAMES = {
    "batch": "sentence",
    "move": "places on",
    "time": "predicted",
    "source": "given",
    "distance": "places back",
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
class Labels:
    """What the entries of an axis are called."""

    token: Callable[[int], str]
    """The text of an id of the vocabulary."""
    tokens: tuple[str, ...] = ()
    """Of the sequence that is shown, the opening symbol first; empty where none is."""
    sentences: tuple[str, ...] = ()
    """Of the batch, where there are several."""
    states: tuple[str, ...] = ()
    """The likeliest word of each state, where it is known."""
    order: Places | None = field(default=None, compare=False)
    """States, the busiest first, where it is known."""

    def of(self, axis: str, entries: int) -> tuple[str, ...] | None:
        """A name for each entry; None where numbers must do."""
        if axis in WORD_AXES:
            return self._words(axis, entries)
        if axis in ("state", "next state"):
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

    def name_of(self, axis: str, entries: int) -> str:
        """What the axis is called."""
        plain = self.tokens and entries in (len(self.tokens), len(self.tokens) - 2)
        return "token" if plain and axis in WORD_AXES else AXIS_NAMES[axis]

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
class Shown:
    """An inner value made ready to be drawn: no batch, nothing of one entry, not too long."""

    values: Values
    axes: tuple[str, ...]
    names: tuple[str, ...]
    """What each axis is called in the picture."""
    labels: tuple[tuple[str, ...] | None, ...]
    remarks: tuple[str, ...] = field(default=())

    def take(self, axis: int, places: Places, remark: str = "") -> Shown:
        """Some entries of an axis, in that order."""
        named = self.labels[axis]
        chosen = None if named is None else tuple(named[place] for place in places)
        labels = (*self.labels[:axis], chosen, *self.labels[axis + 1 :])
        remarks = (*self.remarks, remark) if remark else self.remarks
        values = np.take(self.values, places, axis=axis)
        return replace(self, values=values, labels=labels, remarks=remarks)

    def at(self, axis: int, place: int) -> Shown:
        """One entry of an axis, which so disappears."""
        drop = lambda kept: (*kept[:axis], *kept[axis + 1 :])  # noqa: E731
        return replace(
            self,
            values=np.take(self.values, place, axis=axis),
            axes=drop(self.axes),
            names=drop(self.names),
            labels=drop(self.labels),
        )

    def moved(self, order: tuple[int, ...]) -> Shown:
        """The axes in another order."""
        return replace(
            self,
            values=self.values.transpose(order),
            axes=tuple(self.axes[place] for place in order),
            names=tuple(self.names[place] for place in order),
            labels=tuple(self.labels[place] for place in order),
        )


def capture_pictures(
    captures: Mapping[str, Capture], labels: Labels, *, text: str = ""
) -> list[Picture]:
    """A picture for each inner value that has more than one number to show."""
    labels = replace(labels, order=busiest_first(captures))
    found = (capture_picture(name, each, labels, text=text) for name, each in captures.items())
    return [picture for picture in found if picture is not None]


def capture_picture(
    name: str, capture: Capture, labels: Labels, *, text: str = ""
) -> Picture | None:
    """The picture that an inner value's axes ask for; None where there is nothing to tell."""
    if any(axis in CHOSEN and size == 1 for axis, size in _sizes(capture)):
        return None  # Where there is one way only, it is always taken.
    shown = prepare(capture, labels)
    if shown.values.size < 2 or not np.isfinite(shown.values).any():
        return None
    while shown.values.ndim > 3:
        shown = shown.at(0, 0)
    if shown.values.ndim == 1:
        picture = _vector(shown, title=name)
    elif set(LISTED) & set(shown.axes):
        picture = _words_of(shown, labels.order, title=name)
    elif shown.values.ndim == 2:
        picture = _matrix(shown, title=name)
    else:
        picture = _panels(shown, title=name)
    reading = in_a_row((_sentence(capture.reading), picture.reading))
    return replace(picture, name=file_name(name), reading=reading, text=text)


def prepare(capture: Capture, labels: Labels) -> Shown:
    """Without axes of one entry, long sentences cut; the first of a batch unless all are named."""
    values = capture.values.detach().double().cpu().numpy()
    values = np.where(np.isneginf(values), np.nan, values)
    sizes = _sizes(capture)
    shown = Shown(
        values=values,
        axes=capture.axes,
        names=tuple(labels.name_of(axis, size) for axis, size in sizes),
        labels=tuple(capture.names.get(axis) or labels.of(axis, size) for axis, size in sizes),
    )
    for axis in reversed(range(values.ndim)):
        name, size = shown.axes[axis], shown.values.shape[axis]
        alone = name == "batch" and not labels.sentences
        # The only entity that a text names is still to be named.
        if alone or (size == 1 and shown.values.ndim > 1 and name not in LISTED):
            shown = shown.at(axis, 0)
        elif name in WORD_AXES and size > MOST_PLACES:
            remark = f"Shown are the first {MOST_PLACES} of {size} places."
            remark = "" if remark in shown.remarks else remark
            shown = shown.take(axis, np.arange(MOST_PLACES), remark)
    return shown


def _sizes(capture: Capture) -> list[tuple[str, int]]:
    return list(zip(capture.axes, capture.values.shape, strict=True))


def state_names(captures: Mapping[str, Capture], labels: Labels) -> tuple[str, ...]:
    """The likeliest token of each state, where a capture tells p(token | state)."""
    for capture in captures.values():
        if set(capture.axes) == {"token", "state"}:
            best = capture.values.argmax(dim=capture.axes.index("token"))
            return tuple(short_label(labels.token(int(token))) for token in best)
    return ()


def busiest_first(captures: Mapping[str, Capture]) -> Places | None:
    """States by their share of the predictions, where a capture tells it."""
    for capture in captures.values():
        values = capture.values.detach().double().cpu().numpy()
        if capture.axes == ("state",) and _is_share(values):
            return by_size(values)
    return None


def file_name(name: str) -> str:
    """A name that any disk takes."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name)
    return "-".join(part for part in kept.lower().split("-") if part) or "picture"


def _sentence(reading: str) -> str:
    return reading if reading.rstrip().endswith((".", "!", "?")) else f"{reading.rstrip()}."


def _vector(shown: Shown, *, title: str) -> Picture:
    """Bars; states, units and tokens sorted, because their numbers mean nothing."""
    [axis], [name], [labels] = shown.axes, shown.names, shown.labels
    values = np.nan_to_num(shown.values)
    order = np.arange(len(values))
    if axis in ("state", "next state", "unit", "token"):
        order = by_size(values)
    if axis == "token":
        order = order[:MOST_TOKENS]
    kept, remark, level = values[order], "", None
    if axis in ("state", "next state", "unit", "choice") and _is_share(values):
        remark = f"effective number {_perplexity(values):.1f} of {len(values)}"
        level = 1 / len(values)
    lying = axis in ("token", "batch") or (
        labels is not None and axis == "state" and len(kept) <= MOST_STATES
    )
    bars = Bars(
        values=kept,
        labels=None if labels is None else tuple(labels[place] for place in order),
        axis=name + (", largest first" if axis in ("state", "unit") else ""),
        unit="share" if _is_share(values) else "value",
        remark=remark,
        level=level,
        lying=lying,
    )
    dashed = (
        "The dashed line is an equal share; the effective number is e to the power of the entropy."
        if level is not None
        else ""
    )
    wide = min(7.0, max(2.6, 0.34 * len(kept)))
    return Picture(
        name="",
        title=title,
        reading=in_a_row((dashed, *shown.remarks)),
        draw=partial(draw_bars, bars=bars, title=title),
        width=4.6 if lying else wide,
        height=max(1.2, 0.24 * len(kept)) if lying else 2.3,
    )


def _is_share(values: Values) -> bool:
    return bool((values >= -1e-6).all() and abs(values.sum() - 1) < 1e-3)


def _perplexity(shares: Values) -> float:
    """exp(entropy): how many equally likely ones would be as uncertain."""
    positive = shares[shares > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))


def _token_share(token: str, share: float) -> str:
    return f"{short_label(token)} {share:.2g}"


def _name_share(name: str, share: float) -> str:
    return f"{name} {share:.2f}"


def _words_of(shown: Shown, order: Places | None, *, title: str) -> Picture:
    """The likeliest tokens of each state, choice or place, a line each; busiest states first.

    Likewise entities and facts, which have long names, so that fewer are told.
    """
    listed = next(each for each in LISTED if each in shown.axes)
    axis = shown.axes.index(listed)
    most, told = (WORDS_A_STATE, _token_share) if listed == "token" else (FEW_NAMES, _name_share)
    names, others = shown.labels[axis], tuple(a for a in range(shown.values.ndim) if a != axis)
    assert names is not None
    table = shown.values.transpose(*others, axis).reshape(-1, shown.values.shape[axis])
    kind = shown.names[others[0]]
    labels = shown.labels[others[0]] if len(others) == 1 else None
    known = order is not None and len(order) == len(table) and kind == "state"
    rows = []
    for row in (order if known and order is not None else np.arange(len(table)))[:MOST_STATES]:
        values = table[row]
        if np.isnan(values).all():
            continue  # Nothing is told of this place.
        best = by_size(np.nan_to_num(values, nan=-np.inf))[:most]
        words = " · ".join(told(names[t], values[t]) for t in best if not np.isnan(values[t]))
        rows.append((str(row) if labels is None else short_label(labels[row].split()[0]), words))
    header = (kind, f"likeliest {LISTED[listed]}")
    listing = Listing(header=header, rows=tuple(rows), places=(0.0, 1.0))
    left = len(table) > MOST_STATES
    which = "busiest" if known else "first"
    more = f"Shown are the {which} {MOST_STATES} of {len(table)}." if left else ""
    return Picture(
        name="",
        title=title,
        reading=in_a_row((more, *shown.remarks)),
        draw=partial(draw_listing, listing=listing, title=title),
        width=8.5,
        height=listing.height,
    )


def _matrix(shown: Shown, *, title: str) -> Picture:
    shown = _arranged(shown)
    grid = _grid(shown)
    width, height = grids_size([grid])
    return Picture(
        name="",
        title=title,
        reading=in_a_row(shown.remarks),
        draw=partial(draw_grids, grids=[grid], title=title),
        width=width,
        height=height,
    )


def _panels(shown: Shown, *, title: str) -> Picture:
    """A heat map for each entry of one axis, all on one scale."""
    axis = _panel_axis(shown.axes)
    count, kind = shown.values.shape[axis], shown.names[axis]
    names = shown.labels[axis] or tuple(str(place + 1) for place in range(count))
    chosen = list(range(min(count, MOST_PANELS)))
    # All heat maps in the order of their mean, so that they compare.
    mean = replace(shown.at(axis, 0), values=np.nanmean(shown.values, axis=axis))
    order = _order(_oriented(mean))
    grids = [
        _grid(_reordered(_oriented(shown.at(axis, place)), order), f"{kind} {names[place]}")
        for place in chosen
    ]
    width, height = grids_size(grids)
    more = "" if count <= MOST_PANELS else f"Shown are {MOST_PANELS} of {count} heat maps."
    return Picture(
        name="",
        title=title,
        reading=in_a_row((*_remarks(order), more, *shown.remarks)),
        draw=partial(draw_grids, grids=grids, title=title),
        width=width,
        height=height,
    )


def _panel_axis(axes: tuple[str, ...]) -> int:
    needed = next((pair for pair in PAIRS if set(pair) <= set(axes)), ())
    for name in PANEL_FIRST:
        if name in axes and name not in needed:
            return axes.index(name)
    return 0


def _grid(shown: Shown, title: str = "") -> Grid:
    values = _without_future(shown)
    rows, columns = (
        Axis(name=name, labels=labels, longest=LONGEST_LYING if axis == "batch" else LONGEST_LABEL)
        for axis, name, labels in zip(shown.axes, shown.names, shown.labels, strict=True)
    )
    small = title or (len(values) > MOST_STATES and rows.labels is not None)
    cell = SMALL_CELL if small else Grid.cell
    return Grid(values=values, rows=rows, columns=columns, title=title, cell=cell)


def _without_future(shown: Shown) -> Values:
    """Inputs that no prediction looks at because they come later are left blank."""
    values = shown.values
    if shown.axes == ("time", "source") and values.shape[0] == values.shape[1]:
        later = np.triu(np.ones_like(values, dtype=bool), k=1)
        if not np.nan_to_num(values[later]).any():
            return np.where(later, np.nan, values)
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """Which rows and columns are drawn, in which order, and what is said of it."""

    rows: Places | None = None
    columns: Places | None = None
    remark: str = ""


def _remarks(order: _Order) -> tuple[str, ...]:
    return (order.remark,) if order.remark else ()


def _arranged(shown: Shown) -> Shown:
    """Words along the bottom, states and units in an order that lets structure show."""
    oriented = _oriented(shown)
    return _reordered(oriented, _order(oriented))


def _oriented(shown: Shown) -> Shown:
    """Rows and columns: what is given, and else words, along the bottom."""
    first, second = shown.axes
    flipped = (
        shown.axes in (("source", "time"), ("next state", "state"))
        or (first in WORD_AXES and second not in WORD_AXES)
        or (first == "distance" and second not in WORD_AXES)
    )
    return shown.moved((1, 0)) if flipped else shown


def _order(shown: Shown) -> _Order:
    rows, columns = shown.axes
    count = len(shown.values)
    if shown.axes == ("state", "next state") and count == shown.values.shape[1]:
        kept = most_visited(shown.values, MOST_MATRIX)
        order = kept[by_flow(shown.values[np.ix_(kept, kept)])]
        what = "" if count <= MOST_MATRIX else f"the {MOST_MATRIX} most visited of {count} states, "
        remark = f"{what or 'states '}ordered so that those that follow one another stand together."
        return _Order(rows=order, columns=order, remark=remark[:1].upper() + remark[1:])
    if columns == "unit" and rows == "batch" and count > 2:
        places = by_likeness(shown.values.T)
        return _Order(columns=places, remark="Units that go up and down together stand together.")
    if shown.axes == ("batch", "choice") and shown.values.shape[1] > MOST_MATRIX:
        weights = np.abs(np.nan_to_num(shown.values)).sum(0)
        remark = f"Shown are the {MOST_MATRIX} of {len(weights)} choices with most weight here."
        return _Order(columns=np.sort(by_size(weights)[:MOST_MATRIX]), remark=remark)
    if rows == "unit" and count > 2:
        order = by_likeness(shown.values)
        return _Order(rows=order, remark="Units that go up and down together stand together.")
    if rows in ("state", "next state", "choice") and columns in WORD_AXES and count > MOST_STATES:
        busiest = by_size(np.abs(np.nan_to_num(shown.values)).sum(1))[:MOST_STATES]
        order = busiest[by_centre(shown.values[busiest])]
        remark = f"Shown are the {MOST_STATES} of {count} {rows}s with most weight here."
        return _Order(rows=order, remark=remark)
    return _Order()


def _reordered(shown: Shown, order: _Order) -> Shown:
    shown = replace(shown, remarks=(*shown.remarks, *_remarks(order)))
    shown = shown if order.rows is None else shown.take(0, order.rows)
    return shown if order.columns is None else shown.take(1, order.columns)
