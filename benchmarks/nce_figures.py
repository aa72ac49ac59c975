"""Figures of benchmarks/nce.py: gradient cosines, variances, times and normalisers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from lmlab.plotting.figure import add_legend, as_svg, canvas, line_style, set_plain_log_scale


def plot_figures(report: dict[str, Any], folder: Path) -> None:
    """Write nce-cosine.svg, nce-variance.svg, nce-time.svg and nce-normaliser.svg."""
    plots = {
        "nce-cosine": plot_cosine,
        "nce-variance": plot_variance,
        "nce-time": plot_time,
        "nce-normaliser": plot_normaliser,
    }
    for name, plot in plots.items():
        with canvas(name, height=3.2) as figure:
            plot(report, figure)
            (folder / f"{name}.svg").write_text(as_svg(figure), encoding="utf-8")


def set_log_x_axis(axes: Axes, ticks: Sequence[float]) -> None:
    """Make the x axis logarithmic, with plain numbers as tick labels."""
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), [f"{tick:,g}" if tick < 1e4 else f"{tick:,.0f}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())


def plot_cosine(report: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for style, name in enumerate(name for name in report["cosine"] if name != "ks"):
        distances = [1 - value for value in report["cosine"][name]]
        axes.plot(report["cosine"]["ks"], distances, label=name, marker=".", **line_style(style))
    set_log_x_axis(axes, (1, 10, 100, 1000))
    axes.set(yscale="log", xlabel="k, noise tokens per target")
    axes.set(ylabel="1 - cosine to maximum likelihood's")
    set_plain_log_scale(axes)
    add_legend(axes)


def plot_variance(report: dict[str, Any], figure: Figure) -> None:
    """Gradient variance in the trained model, and in one context with peaked probabilities."""
    peaked = [row for row in report["peaked"] if row["mass"] == 0.99]
    panels = figure.subplots(1, 2, sharey=True)
    for axes, rows, title in (
        (panels[0], report["variance"], "LSTM trained by nce"),
        (panels[1], peaked, "sure of three rare tokens"),
    ):
        for style, name in enumerate(
            ("nce", "importance", "sampled softmax", "importance, Z known")
        ):
            points = [row for row in rows if row["estimator"] == name]
            if points:
                xs, ys = [row["k"] for row in points], [row["own_variance"] for row in points]
                axes.plot(xs, ys, label=name, marker="o", **line_style(style))
        set_log_x_axis(axes, (10, 100, 1000))
        axes.set(yscale="log", xlabel="k", title=title)
        set_plain_log_scale(axes)
    panels[0].set(ylabel="variance / squared length of the mean")
    add_legend(panels[1])


def plot_time(report: dict[str, Any], figure: Figure) -> None:
    axes, records = figure.subplots(), report["time"]["records"]
    sizes = [row["vocabulary"] for row in records]
    names = {"softmax": "softmax", "nce": "nce", "nce shared": "nce shared", "adam": "Adam's step"}
    for style, (name, label) in enumerate(names.items()):
        times = [row[name]["seconds"] * 1000 for row in records]
        axes.plot(sizes, times, label=label, marker="o", **line_style(style))
    set_log_x_axis(axes, (10_000, 100_000, 1_000_000))
    axes.set(yscale="log", xlabel="vocabulary", ylabel="milliseconds per step")
    set_plain_log_scale(axes)
    add_legend(axes)


def plot_normaliser(report: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for style, record in enumerate(report["training"]):
        steps = [point["step"] for point in record["course"]]
        log_z = [point["log_z"] for point in record["course"]]
        axes.plot(steps, log_z, label=record["name"], **line_style(style))
    axes.set_yscale("symlog", linthresh=0.5)
    axes.set_yticks([-0.25, 0, 0.25, 0.5, 5, 50], ["-0.25", "0", "0.25", "0.5", "5", "50"])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="step", ylabel="mean log Z on held-out text", ylim=(-0.3, 80))
    add_legend(axes)
