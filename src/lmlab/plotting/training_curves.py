"""Loss figures (SVG): training curves from metrics.jsonl, and loss bars, with the true entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from lmlab.plotting.figure import (
    FOREGROUND_COLOUR,
    abbreviate_count,
    add_legend,
    as_svg,
    canvas,
    colour,
    line_style,
    printable_name,
)


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Loss curve of one training run, in nats per token, by training tokens seen."""

    name: str
    train: tuple[tuple[float, float], ...]
    """Pairs of tokens seen and mean loss since the pair before."""
    held_out: tuple[tuple[float, float], ...]
    """Pairs of tokens seen and loss on held-out text."""
    colour_index: int = 0
    """Its index in the palette."""
    another_loss: bool = False
    """Whether training losses are of another kind than held-out ones (NCE, distillation)."""
    single_epoch: bool = False
    """Whether the model was fitted in one pass (n-gram counts), so that it has a single loss."""


@dataclass(frozen=True, kw_only=True)
class LossBar:
    """A bar: one loss with its spread, where it has one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    colour_index: int = 0
    """Its index in the palette."""


def draw_training_curves(
    curves: Sequence[LossCurve], *, floor: float | None = None, unit: str = "nats per token"
) -> str:
    """Plot loss against training tokens: held-out thick, training thin, the entropy dashed.

    A model fitted in one pass has one held-out loss, drawn as a horizontal line; one that was
    validated once in many steps has a point. Sampled training losses are labelled so, as they are
    not comparable with held-out ones.
    """
    with canvas("curves", height=3.6) as figure:
        axes = figure.subplots()
        max_tokens = max((x for c in curves for x, _ in (*c.train, *c.held_out)), default=1.0)
        for curve in curves:
            _draw_curve(axes, curve, max_tokens)
        _draw_floor(axes, floor, horizontal=True)
        axes.set_ylim(*_curve_limits(curves, floor))
        axes.set_xlim(0, max_tokens * 1.02)
        axes.set_xlabel("training tokens seen")
        axes.set_ylabel(unit)
        axes.xaxis.set_major_formatter(lambda value, _: abbreviate_count(value))
        add_legend(axes)
        return as_svg(figure)


def draw_loss_bars(
    bars: Sequence[LossBar], *, floor: float | None = None, unit: str = "nats per token"
) -> str:
    """Plot a bar for each loss, with the true entropy as a dashed line."""
    ends = [value for bar in bars for value in (bar.value, bar.low, bar.high) if value is not None]
    finite = [value for value in ends if np.isfinite(value)] or [1.0]
    low, high = min(0.0, *finite), max(0.0, *finite)
    with canvas("bars", height=0.8 + 0.34 * len(bars)) as figure:
        axes = figure.subplots()
        for index, bar in enumerate(bars):
            _draw_bar(axes, bar, index, max_length=high + 0.1 * (high - low))
        _draw_floor(axes, floor, horizontal=False)
        axes.set_yticks(range(len(bars)), [printable_name(bar.name) for bar in bars])
        axes.invert_yaxis()
        axes.set_xlim(low, high + 0.15 * (high - low or 1.0))
        axes.set_xlabel(unit)
        axes.tick_params(axis="y", length=0)
        add_legend(axes)
        return as_svg(figure)


def loss_curve_from_metrics(
    name: str, lines: Sequence[dict[str, Any]], *, comparable: bool = True
) -> LossCurve:
    """The loss curve of a run from the lines of its metrics.jsonl."""
    train, held_out, tokens_seen = [], [], 0.0
    for line in lines:
        loss = line.get("loss")
        if not isinstance(loss, (int, float)) or not np.isfinite(loss):
            continue
        if line.get("event") == "train":
            tokens_seen += float(line.get("count", 0))
            train.append((tokens_seen, float(loss)))
        elif line.get("event") in ("validation", "test"):
            held_out.append((tokens_seen, float(loss)))
    trained = [line for line in lines if line.get("event") == "train"]
    return LossCurve(
        name=name,
        train=tuple(train),
        held_out=tuple(held_out),
        another_loss=not comparable,
        single_epoch=len(trained) == 1 and "learning_rate" not in trained[0],
    )


def _draw_bar(axes: Axes, bar: LossBar, index: int, *, max_length: float) -> None:
    # A model that gives some text probability zero has no finite loss: its bar goes to the edge.
    length = bar.value if np.isfinite(bar.value) else max_length
    axes.barh(index, length, height=0.62, color=colour(bar.colour_index))
    if bar.low is not None and bar.high is not None:
        axes.plot((bar.low, bar.high), (index, index), color=FOREGROUND_COLOUR, linewidth=1.2)
    right = max(length, 0.0, bar.high or 0.0)
    label = f" {bar.value:.3f}" if np.isfinite(bar.value) else " ∞"
    axes.annotate(label, (right, index), va="center", fontsize=9, color=FOREGROUND_COLOUR)


def _draw_curve(axes: Axes, curve: LossCurve, max_tokens: float) -> None:
    name = printable_name(curve.name)
    style = line_style(curve.colour_index)
    if curve.train:
        train_label = f"{name} (training, another loss)" if curve.another_loss else None
        axes.plot(
            *zip(*curve.train, strict=True), linewidth=0.9, alpha=0.45, label=train_label, **style
        )
    if len(curve.held_out) == 1:
        x, y = curve.held_out[0]
        if curve.single_epoch:
            axes.plot((0, max_tokens), (y, y), linewidth=1.2, alpha=0.8, **style)
        axes.plot(x, y, "o", markersize=5, label=name, **style)
    elif curve.held_out:
        axes.plot(*zip(*curve.held_out, strict=True), linewidth=2, label=name, **style)
    elif curve.train and not curve.another_loss:
        axes.plot([], [], linewidth=0.9, label=f"{name} (training)", **style)


def _draw_floor(axes: Axes, floor: float | None, *, horizontal: bool) -> None:
    if floor is None:
        return
    draw = axes.axhline if horizontal else axes.axvline
    style: dict[str, Any] = {"color": FOREGROUND_COLOUR, "linewidth": 1.2, "linestyle": (0, (2, 2))}
    draw(floor, label=f"entropy {floor:.3f}", **style)


def _curve_limits(curves: Sequence[LossCurve], floor: float | None) -> tuple[float, float]:
    """Axis limits up to the worst held-out loss: the first training steps may be cut off."""
    held_out = [loss for curve in curves for _, loss in curve.held_out]
    train = [loss for curve in curves if len(curve.train) > 1 for _, loss in curve.train]
    if not held_out and not train:
        return 0.0, 1.0
    low = min([*held_out, *train, *([] if floor is None else [floor])])
    high = max(held_out) if held_out else max(train)
    margin = 0.08 * max(high - low, 0.1)
    return max(0.0, low - margin), high + 2 * margin
