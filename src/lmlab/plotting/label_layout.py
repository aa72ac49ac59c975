"""Label placement: names next to points without overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from lmlab.plotting.figure import FOREGROUND_COLOUR

LETTER_INCHES = 0.075
"""Width in inches of a Latin letter at 9 points; a Chinese one takes twice that."""
LABEL_HEIGHT_INCHES = 0.14
GAP = 0.08
BOLD_WIDTH_FACTOR = 1.15
"""Relative width of bold text."""
DIRECTIONS = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))
"""Directions of a label from its point, best first."""


def place_labels(
    axes: Axes, points: NDArray[np.float64], labels: Sequence[str], *, strong: int = 0
) -> list[tuple[float, float, float, float]]:
    """Place each label near its point with the least overlap; returns their boxes in inches.

    The first `strong` are placed first and set in bold. A label without free space is moved further
    away with a thin line to its point.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    low = np.array([axes.get_xlim()[0], axes.get_ylim()[0]])
    high = np.array([axes.get_xlim()[1], axes.get_ylim()[1]])
    size = np.array(figure.get_size_inches())
    spots = (points - low) / np.maximum(high - low, 1e-30) * size
    taken: list[tuple[float, float, float, float]] = []
    for place, (spot, label) in enumerate(zip(spots, labels, strict=True)):
        width = _width(label) * (BOLD_WIDTH_FACTOR if place < strong else 1.0)
        box, far = _free_box(spot, width, taken, spots, size)
        taken.append(box)
        middle = np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
        axes.annotate(
            label,
            xy=tuple(points[place]),
            xytext=tuple(low + middle / size * (high - low)),
            ha="center",
            va="center",
            fontsize=9,
            fontweight="bold" if place < strong else "normal",
            color=FOREGROUND_COLOUR,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": FOREGROUND_COLOUR}
            if far
            else None,
        )
    return taken


def _width(label: str) -> float:
    return LETTER_INCHES * sum(2 if ord(letter) > 0x2E80 else 1 for letter in label)


def _free_box(
    spot: NDArray[np.float64],
    width: float,
    taken: Sequence[tuple[float, float, float, float]],
    spots: NDArray[np.float64],
    size: NDArray[np.float64],
) -> tuple[tuple[float, float, float, float], bool]:
    """The best box for a label, and whether it is away from its point."""
    best, least = (0.0, 0.0, 0.0, 0.0), np.inf
    for ring in range(4):
        reach = GAP + 0.16 * ring
        for right, up in DIRECTIONS:
            x = spot[0] + right * (width / 2 + reach)
            y = spot[1] + up * (LABEL_HEIGHT_INCHES / 2 + reach * (1 if ring else 0.6))
            box = (
                x - width / 2,
                y - LABEL_HEIGHT_INCHES / 2,
                x + width / 2,
                y + LABEL_HEIGHT_INCHES / 2,
            )
            cost = _covered(box, taken, spots, size)
            if cost == 0:
                return box, ring > 1
            if cost < least:
                best, least = box, cost
    return best, False


def _covered(
    box: tuple[float, float, float, float],
    taken: Sequence[tuple[float, float, float, float]],
    spots: NDArray[np.float64],
    size: NDArray[np.float64],
) -> float:
    """The overlap of a box with other labels, points and the outside of the figure."""
    left, bottom, right, top = box
    cost = 0.0
    for other in taken:
        across = min(right, other[2]) - max(left, other[0])
        up = min(top, other[3]) - max(bottom, other[1])
        cost += max(across, 0.0) * max(up, 0.0)
    inside = (spots > (left, bottom)) & (spots < (right, top))
    cost += 0.02 * float(inside.all(1).sum())
    outside = max(-left, 0.0) + max(-bottom, 0.0) + max(right - size[0], 0.0)
    return cost + outside + max(top - size[1], 0.0)
