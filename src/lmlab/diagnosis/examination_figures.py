"""Figures of an examination: the loss curve with baselines and reference band; causality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmlab.core.figure_style import PLAIN_STYLE, FigureFileStyle
from lmlab.diagnosis.causality import (
    MAX_NAME,
    CausalityReport,
    EffectMatrix,
    effect_matrices,
    numbered_tokens,
)
from lmlab.diagnosis.findings import Examination, ReferenceBand
from lmlab.plotting.charts import ColourScale, HeatMap, HeatMapAxis, Values, draw_heat_map
from lmlab.plotting.figure import (
    FOREGROUND_COLOUR,
    FigureSpec,
    abbreviate_count,
    add_legend,
    colour,
    printable_name,
    write_figures,
)


def write_examination_figures(
    examination: Examination, folder: Path, style: FigureFileStyle = PLAIN_STYLE
) -> list[Path]:
    """Write doctor.svg, causality.svg and their PNGs into a folder; what there is to draw."""
    files = write_loss_figure(examination, folder, style)
    if examination.causality is not None:
        files += write_causality_figure(examination.causality, folder, style)
    return files


LOSS_CAPTION = (
    "Thick: held-out loss; thin: training loss, with dropout where the system has it. A "
    "model that uses its context ends below the unigram line, one that uses more than one "
    "word below the bigram line; no valid loss is below the entropy. Shaded: healthy runs."
)
BASELINE_DASH = (0, (2, 2))


def loss_figure(examination: Examination) -> FigureSpec:
    """Loss against training tokens, baselines dashed, reference band shaded."""
    return FigureSpec(
        name="doctor",
        title="Loss curve and baselines",
        caption=LOSS_CAPTION,
        draw=lambda figure: _draw_loss(figure, examination),
        height=3.8,
    )


def write_loss_figure(
    examination: Examination, folder: Path, style: FigureFileStyle = PLAIN_STYLE
) -> list[Path]:
    """Write doctor.svg and doctor.png into a folder; nothing if there is no curve."""
    history = examination.history
    if not history.train and not history.held_out:
        return []
    return write_figures(folder, [loss_figure(examination)], style)


def _draw_loss(figure: Figure, examination: Examination) -> None:
    axes = figure.subplots()
    history = examination.history
    max_tokens = max(history.tokens, 1.0)
    if examination.reference_band is not None:
        _draw_band(axes, examination.reference_band, max_tokens)
    style: dict[str, Any] = {"color": colour(0)}
    if history.train:
        points = [(window.tokens, window.loss) for window in history.train]
        name = "training" if examination.losses_comparable else "training, another loss"
        axes.plot(*zip(*points, strict=True), linewidth=0.9, alpha=0.45, label=name, **style)
    if history.held_out:
        points = [(point.tokens, point.loss) for point in history.held_out]
        axes.plot(
            *zip(*points, strict=True),
            linewidth=2,
            marker="o",
            markersize=3,
            label=printable_name(history.split or "held out"),
            **style,
        )
    for index, level in enumerate(examination.levels):
        label = f"{level.name} {level.value:.3f}"
        axes.axhline(
            level.value,
            label=label,
            color=colour(index + 1),
            linewidth=1.2,
            linestyle=BASELINE_DASH,
        )
    axes.set_ylim(*_limits(examination))
    axes.set_xlim(0, max_tokens * 1.02)
    axes.set_xlabel("training tokens seen", color=FOREGROUND_COLOUR)
    axes.set_ylabel(examination.unit, color=FOREGROUND_COLOUR)
    axes.xaxis.set_major_formatter(lambda value, _: abbreviate_count(value))
    add_legend(axes)


def _draw_band(axes: Axes, band: ReferenceBand, max_tokens: float) -> None:
    """Shade the band to the end of the curve, constant after the last reference point."""
    inside = [point for point in band.points if point[0] <= max_tokens]
    end = band.at(max_tokens)
    points = [*inside, (max_tokens, *end)] if end is not None else inside
    if points:
        tokens, low, high = zip(*points, strict=True)
        axes.fill_between(tokens, low, high, color=colour(2), alpha=0.18, label="healthy runs")


def _limits(examination: Examination) -> tuple[float, float]:
    """y limits: from below all curves to just above the highest baseline; worse curves are cut."""
    history = examination.history
    losses = [entry.loss for entry in history.held_out or history.train]
    levels = [level.value for level in examination.levels]
    low = min([*losses, *levels, *(window.loss for window in history.train)])
    high = max(levels) if levels else max(losses)
    high = max(high, min(min(losses), 2 * high))
    margin = 0.06 * max(high - low, 0.1)
    return max(0.0, low - margin), high + margin


CAUSALITY_CAPTION = (
    "Each row was changed by itself; each column is a prediction. Blue: it depends on an earlier "
    "token, as it should. Orange: it depends on something that it must not see, with the largest "
    "change of a log-probability in nats. White: no effect."
)
LEGEND = "blue: depends on an earlier token   orange: on what it must not see (nats)"
CELL = 0.25
"""Inches of a cell."""
GAP_INCHES = 0.45
"""Between two matrixs, with the title of the lower one."""


def causality_figure(report: CausalityReport) -> FigureSpec:
    """The three matrices, one below the other, on a logarithmic scale of colours."""
    maps = [_heat_map(report, matrix) for matrix in effect_matrices(report)]
    height = sum(grid.inches[1] for grid in maps) + GAP_INCHES * (len(maps) - 1)
    return FigureSpec(
        name="causality",
        title="What each prediction depends on",
        caption=CAUSALITY_CAPTION,
        draw=lambda figure: _draw_matrices(figure, report, maps),
        width=maps[0].inches[0],
        height=height,
        fixed_layout=True,
    )


def write_causality_figure(
    report: CausalityReport, folder: Path, style: FigureFileStyle = PLAIN_STYLE
) -> list[Path]:
    """Write causality.svg and causality.png into a folder."""
    return write_figures(folder, [causality_figure(report)], style)


def _heat_map(report: CausalityReport, matrix: EffectMatrix) -> HeatMap:
    """Decades above the tolerance; below zero where it is a leak."""
    return HeatMap(
        values=_decades(report, matrix),
        rows=HeatMapAxis(name="", labels=matrix.sources, max_label_length=MAX_NAME),
        columns=HeatMapAxis(name="prediction of", labels=numbered_tokens(report.predictions)),
        title=matrix.title,
        cell=CELL,
    )


def _decades(report: CausalityReport, matrix: EffectMatrix) -> Values:
    values = np.full((len(matrix.effects), len(report.predictions)), np.nan)
    for row, effects in enumerate(matrix.effects):
        for column, nats in enumerate(effects):
            if nats is not None:
                decades = math.log10(max(nats / report.tolerance, 1.0))
                values[row, column] = -decades if matrix.is_leak(row, column) else decades
    return values


def _draw_matrices(figure: Figure, report: CausalityReport, maps: Sequence[HeatMap]) -> None:
    limit = max(1.0, max(float(np.nanmax(np.abs(grid.values))) for grid in maps))
    scale = ColourScale(low=-limit, high=limit)
    height = figure.get_size_inches()[1]
    figure.text(0, 1 + 0.32 / height, LEGEND, fontsize=9)
    top = 0.0
    for index, (grid, matrix) in enumerate(zip(maps, effect_matrices(report), strict=True)):
        inches = grid.inches[1]
        axes = figure.add_axes((0, 1 - (top + inches) / height, 1, inches / height))
        draw_heat_map(axes, grid, scale, columns_named=index == len(maps) - 1)
        axes.set_title(grid.title, loc="left", fontsize=9)
        for row, effects in enumerate(matrix.effects):
            for column, nats in enumerate(effects):
                if nats is not None and nats > report.tolerance and matrix.is_leak(row, column):
                    axes.annotate(
                        _compact(nats),
                        (column + 0.5, row + 0.5),
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color=FOREGROUND_COLOUR,
                    )
        top += inches + GAP_INCHES


def _compact(nats: float) -> str:
    """A number that fits in a cell: 2.1, .21, 3e-4."""
    if nats >= 1:
        return f"{nats:.1f}"
    return f"{nats:.2f}"[1:] if nats >= 0.01 else f"{nats:.0e}".replace("e-0", "e-")
