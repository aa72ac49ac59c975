"""The picture of docs/yardstick.md: learning curves in bits per byte, families by colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from experiment import Folders
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from yardstick_corpora import SPECS
from yardstick_page import TITLES, Row, order_bits, rows_of
from yardstick_rows import MINUTES
from yardstick_systems import measured_systems

from lmlab.core.score import NORMALISED_KINDS
from lmlab.plotting.figure import FOREGROUND_COLOUR, FigureSpec, colour, render_figure, write_figure

LINE_INCHES = 0.15
"""Height of a label."""
SHOWN_ORDERS = (3, 4, 5, 6, 12)
LAST_SECOND = 60 * MINUTES
BOUND_DASHES = (0, (4, 2))
HIGHEST = 4.0
"""Bits per byte above which curves are cut off, but for ends: the first steps of every training."""


def write_picture(path: Path, folders: Folders) -> None:
    """One panel for each corpus that has curves."""
    panels = {corpus: drawn_rows(rows_of(corpus, folders)) for corpus in SPECS}
    panels = {corpus: rows for corpus, rows in panels.items() if rows}
    most = max((len(rows) for rows in panels.values()), default=1)
    spec = FigureSpec(
        name="yardstick",
        title="One table over all systems",
        caption="Bits per byte of validation lines against CPU seconds of training.",
        draw=lambda figure: draw(figure, panels),
        width=max(5.6 * len(panels), 5.6),
        height=max(4.6, 1.4 + 1.3 * LINE_INCHES * most),
    )
    write_figure(path, render_figure(spec))


def drawn_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows with a curve, whose score is a log-probability or a bound on one."""
    return [row for row in rows if row.curve and row.kind in NORMALISED_KINDS]


def draw(figure: Figure, panels: dict[str, list[Row]]) -> None:
    """Curves with their names at the right, in the order of their ends."""
    colours, drawn = family_colours(), [row for rows in panels.values() for row in rows]
    families = [name for name in colours if name in {row.card.family for row in drawn}]
    all_axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(wspace=0.62, right=0.86, bottom=1.1 / height, top=1 - 0.35 / height)
    for axes, (corpus, rows) in zip(all_axes, panels.items(), strict=False):
        draw_panel(axes, rows, colours)
        axes.set_title(TITLES[corpus], fontsize=10, loc="left")
    all_axes[0].set_ylabel("bits per byte, validation lines")
    handles = [Line2D([], [], color=colours[family]) for family in families]
    names = families
    if any(row.kind == "bound" for row in drawn):
        handles.append(Line2D([], [], color=FOREGROUND_COLOUR, linestyle=BOUND_DASHES))
        names = [*families, "bound"]
    figure.legend(
        handles,
        names,
        frameon=False,
        fontsize=9,
        labelcolor=FOREGROUND_COLOUR,
        loc="upper left",
        bbox_to_anchor=(0.1, 0.6 / height),
        ncols=6,
    )


def family_colours() -> dict[str, str]:
    """A colour for each family that can be drawn, so that none changes as rows are added."""
    families = {card.family for card in measured_systems() if card.kind in NORMALISED_KINDS}
    return {family: colour(index) for index, family in enumerate(sorted(families))}


def draw_panel(axes: Axes, rows: Sequence[Row], colours: dict[str, str]) -> None:
    ends = [row.curve[-1][1] for row in rows]
    low = min(ends) - 0.05
    first = min(HIGHEST, max(bits for row in rows for _, bits in row.curve))
    high = max(first, *ends) + 0.1
    axes.set_xlim(0, LAST_SECOND)
    axes.set_ylim(low, max(high, low + 0.5))
    axes.set_xticks(np.arange(0, LAST_SECOND + 1, 30))
    axes.set_xlabel("CPU seconds of training")
    for row in rows:
        if row.record is not None and row.card.fitting == "counting" and row.record["trials"]:
            draw_orders(axes, order_bits(row.record))
    for row in rows:
        seconds, bits = np.array(row.curve).T
        dashes = BOUND_DASHES if row.kind == "bound" else "-"
        hue = colours[row.card.family]
        axes.plot(seconds, bits, color=hue, linestyle=dashes, linewidth=1.3, alpha=0.85)
        axes.plot(seconds[-1:], bits[-1:], "o", color=hue, markersize=3.5, clip_on=False)
    # What is counted has the names of its orders, at the left where it ends.
    label_ends(axes, [row for row in rows if row.card.fitting != "counting"], colours)


def draw_orders(axes: Axes, bits_by_order: dict[int, float]) -> None:
    """A thin line for the n-gram of each order, named at its left."""
    for order in SHOWN_ORDERS:
        bits = bits_by_order.get(order)
        if bits is None or bits > axes.get_ylim()[1]:
            continue
        axes.axhline(bits, color=FOREGROUND_COLOUR, linewidth=0.6, alpha=0.35, zorder=0)
        axes.annotate(
            f"{order}-gram",
            (0, bits),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=7.5,
            color=FOREGROUND_COLOUR,
            alpha=0.7,
        )


def label_ends(axes: Axes, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Names to the right of the panel, spread so that none covers another, with thin leaders."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    low, high = axes.get_ylim()
    inches = axes.get_position().height * figure.get_size_inches()[1]
    ordered = sorted(rows, key=lambda row: row.curve[-1][1])
    ends = [(row.curve[-1][1] - low) / (high - low) for row in ordered]
    heights = spread(ends, LINE_INCHES / inches)
    for row, end, height in zip(ordered, ends, heights, strict=True):
        axes.annotate(
            f"{row.card.name} {row.curve[-1][1]:.2f}",
            xy=(row.curve[-1][0], low + end * (high - low)),
            xytext=(1.07, height),
            textcoords="axes fraction",
            annotation_clip=False,
            va="center",
            fontsize=8,
            color=colours[row.card.family],
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "color": colours[row.card.family],
                "alpha": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 2,
            },
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Sorted heights between 0 and 1, moved as little as needed to be `gap` apart.

    Least squares under that constraint: isotonic regression of the heights without their gaps, by
    pooling neighbours.
    """
    blocks: list[tuple[float, int]] = []
    """Means and sizes of pooled neighbours."""
    for index, height in enumerate(heights):
        mean, size = height - index * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, members = blocks.pop()
            mean, size = (before * members + mean * size) / (members + size), members + size
        blocks.append((mean, size))
    pooled = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
    highest = max(1 - gap * (len(heights) - 1), 0.0)
    return [float(v) + gap * i for i, v in enumerate(np.clip(pooled, 0, highest))]
