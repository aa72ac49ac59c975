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
    anchors = (points - low) / np.maximum(high - low, 1e-30) * size
    boxes: list[tuple[float, float, float, float]] = []
    for index, (anchor, label) in enumerate(zip(anchors, labels, strict=True)):
        width = _label_width(label) * (BOLD_WIDTH_FACTOR if index < strong else 1.0)
        box, distant = _free_box(anchor, width, boxes, anchors, size)
        boxes.append(box)
        centre = np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
        axes.annotate(
            label,
            xy=tuple(points[index]),
            xytext=tuple(low + centre / size * (high - low)),
            ha="center",
            va="center",
            fontsize=9,
            fontweight="bold" if index < strong else "normal",
            color=FOREGROUND_COLOUR,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": FOREGROUND_COLOUR}
            if distant
            else None,
        )
    return boxes


def _label_width(label: str) -> float:
    return LETTER_INCHES * sum(2 if ord(letter) > 0x2E80 else 1 for letter in label)


def _free_box(
    anchor: NDArray[np.float64],
    width: float,
    boxes: Sequence[tuple[float, float, float, float]],
    anchors: NDArray[np.float64],
    size: NDArray[np.float64],
) -> tuple[tuple[float, float, float, float], bool]:
    """The best box for a label, and whether it is away from its point."""
    best, min_cost = (0.0, 0.0, 0.0, 0.0), np.inf
    for ring in range(4):
        distance = GAP + 0.16 * ring
        for right, up in DIRECTIONS:
            x = anchor[0] + right * (width / 2 + distance)
            y = anchor[1] + up * (LABEL_HEIGHT_INCHES / 2 + distance * (1 if ring else 0.6))
            box = (
                x - width / 2,
                y - LABEL_HEIGHT_INCHES / 2,
                x + width / 2,
                y + LABEL_HEIGHT_INCHES / 2,
            )
            cost = _overlap(box, boxes, anchors, size)
            if cost == 0:
                return box, ring > 1
            if cost < min_cost:
                best, min_cost = box, cost
    return best, False


def _overlap(
    box: tuple[float, float, float, float],
    boxes: Sequence[tuple[float, float, float, float]],
    anchors: NDArray[np.float64],
    size: NDArray[np.float64],
) -> float:
    """The overlap of a box with other labels, points and the outside of the figure."""
    left, bottom, right, top = box
    cost = 0.0
    for neighbour in boxes:
        overlap_width = min(right, neighbour[2]) - max(left, neighbour[0])
        overlap_height = min(top, neighbour[3]) - max(bottom, neighbour[1])
        cost += max(overlap_width, 0.0) * max(overlap_height, 0.0)
    inside = (anchors > (left, bottom)) & (anchors < (right, top))
    cost += 0.02 * float(inside.all(1).sum())
    width, height = map(float, size)
    outside = max(-left, 0.0) + max(-bottom, 0.0) + max(right - width, 0.0)
    return cost + outside + max(top - height, 0.0)
