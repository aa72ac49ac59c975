"""Loss curve figure with baseline losses and the reference band (losses of healthy runs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmlab.core.atomic_files import telling_disk_errors, write_bytes, write_text
from lmlab.diagnosis.findings import Examination, ReferenceBand
from lmlab.plotting.figure import (
    FOREGROUND_COLOUR,
    FigureSpec,
    abbreviate_count,
    add_legend,
    colour,
    printable_name,
    render_figure,
)

CAPTION = (
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
        caption=CAPTION,
        draw=lambda figure: _draw(figure, examination),
        height=3.8,
    )


def write_loss_figure(examination: Examination, folder: Path) -> list[Path]:
    """Write doctor.svg and doctor.png into a folder; nothing if there is no curve."""
    history = examination.history
    if not history.train and not history.held_out:
        return []
    with telling_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    rendered = render_figure(loss_figure(examination))
    write_text(folder / "doctor.svg", rendered.svg)
    write_bytes(folder / "doctor.png", rendered.png)
    return [folder / "doctor.svg", folder / "doctor.png"]


def _draw(figure: Figure, examination: Examination) -> None:
    axes = figure.subplots()
    history = examination.history
    max_tokens = max(history.tokens, 1.0)
    if examination.reference_band is not None:
        _draw_band(axes, examination.reference_band, max_tokens)
    style: dict[str, Any] = {"color": colour(0)}
    if history.train:
        points = [(window.tokens, window.loss) for window in history.train]
        name = "training" if examination.losses_comparable else "training, a sampled loss"
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
