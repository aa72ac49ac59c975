"""Figures of a sweep: parallel coordinates of its trials, importance of its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from lmlab.experiments.search_space import short_value
from lmlab.experiments.sweep_results import Sweep, Trial
from lmlab.experiments.validation_metric import LOSS
from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR, FigureSpec, colour, printable_name

MAX_TICKS = 6
PRUNED_COLOUR = "#8c959f"


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """One vertical axis: the position of each value from 0 to 1, and the labels."""

    title: str
    position: Callable[[Any], float]
    ticks: tuple[tuple[float, str], ...]


def number_coordinate(title: str, numbers: Sequence[float], *, log: bool = False) -> Coordinate:
    """An axis of numbers, of which few are all labelled, else round ones."""
    low, high = min(numbers), max(numbers)
    scale: Callable[[float], float] = math.log if log else float
    span = (scale(high) - scale(low)) or 1.0

    def position(value: float) -> float:
        return (scale(value) - scale(low)) / span

    shown = sorted(set(numbers))
    if len(shown) > MAX_TICKS:
        candidates = _decades(low, high) if log else MaxNLocator(5).tick_values(low, high)
        shown = [float(value) for value in candidates if low <= value <= high] or [low, high]
    return Coordinate(
        title=title, position=position, ticks=tuple((position(v), short_value(v)) for v in shown)
    )


def _decades(low: float, high: float) -> list[float]:
    """1, 3, 10, 30 … about the range."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [first * 10.0**exponent for exponent in exponents for first in (1, 3)]


def choice_coordinate(title: str, values: Sequence[Any]) -> Coordinate:
    """An axis of values without order, evenly spaced."""
    labels = list(dict.fromkeys(short_value(value) for value in values))
    steps = max(len(labels) - 1, 1)
    places = {label: index / steps for index, label in enumerate(labels)}
    return Coordinate(
        title=title,
        position=lambda value: places[short_value(value)],
        ticks=tuple((place, printable_name(label)) for label, place in places.items()),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _coordinate(title: str, values: Sequence[Any], *, log: bool) -> Coordinate:
    if not all(map(_is_number, values)):
        return choice_coordinate(title, values)
    return number_coordinate(title, values, log=log)


def parallel_coordinates_figure(sweep: Sweep) -> FigureSpec:
    """Parallel coordinates: a line per trial through its settings to its result."""
    shown = [trial for trial in sweep.trials if trial.state in ("finished", "pruned")]
    return FigureSpec(
        name="parallel",
        title="Trials",
        caption="Each line is a trial: its settings, and at the right what it reached (lower is "
        "better for a loss). Darker lines are better, the thick one is the best; grey "
        "dashed lines were pruned.",
        draw=partial(_draw_parallel, sweep=sweep, trials=shown),
        width=max(4.0, 1.6 * (len(sweep.varied) + 1)),
        height=3.4,
    )


def _draw_parallel(canvas: Canvas, sweep: Sweep, trials: Sequence[Trial]) -> None:
    axes = canvas.subplots()
    finished = [trial for trial in trials if trial.value is not None]
    title = "loss" if sweep.select == LOSS else sweep.select
    values = [float(trial.value) for trial in finished if trial.value is not None]
    coordinates = [
        _coordinate(name, [t.point[name] for t in trials], log=name in sweep.log_scaled)
        for name in sweep.varied
    ]
    result = number_coordinate(title, values)
    palette = LinearSegmentedColormap.from_list("trials", [COLOURS[0], "#d5deee"])
    norm = Normalize(0.0, 1.0)
    for trial in reversed(trials):
        places = [
            axis.position(trial.point[name])
            for axis, name in zip(coordinates, sweep.varied, strict=True)
        ]
        if trial.value is None:
            axes.plot(
                range(len(places)), places, color=PRUNED_COLOUR, linewidth=0.8, linestyle="--"
            )
            continue
        place = result.position(trial.value)
        shade = norm(place if sweep.lower_is_better else 1 - place)
        axes.plot(
            range(len(places) + 1),
            [*places, place],
            color=colour(1) if trial is sweep.best else palette(shade),
            linewidth=2.6 if trial is sweep.best else 1.1,
        )
    for index, axis in enumerate([*coordinates, result]):
        _draw_axis(axes, index, axis)
    axes.set_axis_off()
    axes.set_xlim(-0.3, len(coordinates) + 0.5)


def _draw_axis(axes: Axes, x: int, coordinate: Coordinate) -> None:
    axes.plot([x, x], [0, 1], color=FOREGROUND_COLOUR, linewidth=1)
    title = printable_name(coordinate.title)
    axes.text(x, 1.08, title, ha="center", va="bottom", color=FOREGROUND_COLOUR, fontsize=10)
    for place, label in coordinate.ticks:
        axes.plot([x - 0.02, x + 0.02], [place, place], color=FOREGROUND_COLOUR, linewidth=1)
        axes.text(
            x + 0.05, place, label, ha="left", va="center", color=FOREGROUND_COLOUR, fontsize=8
        )


def importance_figure(sweep: Sweep) -> FigureSpec:
    """Importance of the settings as bars."""
    assert sweep.importances is not None
    shares = dict(sweep.importances.shares)
    if sweep.importances.interactions is not None:
        shares["interactions"] = sweep.importances.interactions
    return FigureSpec(
        name="importance",
        title="Importance of the settings",
        caption=f"{sweep.importances.method}: {sweep.importances.explanation}.",
        draw=partial(_draw_importance, shares=shares),
        width=5.0,
        height=0.9 + 0.34 * len(shares),
    )


def _draw_importance(canvas: Canvas, shares: dict[str, float]) -> None:
    axes = canvas.subplots()
    names = list(shares)
    axes.barh(range(len(names)), list(shares.values()), color=colour(0), height=0.6)
    for row, share in enumerate(shares.values()):
        axes.text(share + 0.01, row, f"{share:.0%}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [printable_name(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.08)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share")
