"""MCMC trace figure: energies, autocorrelation and acceptance rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmlab.plotting.figure import (
    FOREGROUND_COLOUR,
    FigureSpec,
    abbreviate_count,
    add_legend,
    check_figure_path,
    colour,
    line_style,
    render_figure,
    write_figure,
)
from lmlab.sampling.mcmc.diagnostics import McmcResult

MAX_LINES = 12
"""Most chains shown."""
CAPTION = (
    "Top: the energy of each chain's text; the burn-in is shaded. Chains that have mixed "
    "cover the same range. Bottom left: autocorrelation of the energy; right: the acceptance "
    "rate of proposals, and the rate of steps that changed the text."
)


def mcmc_trace_figure(chains: McmcResult) -> FigureSpec:
    """Energies, autocorrelation and acceptance rates of MCMC chains."""
    return FigureSpec(
        name="chains",
        title=f"{chains.chains} chains by {chains.method}, energy {chains.energy}",
        caption=CAPTION,
        draw=lambda figure: _draw(figure, chains),
        height=5.0,
        fixed_layout=True,
    )


def write_mcmc_traces(chains: McmcResult, path: Path) -> None:
    """Write the figure as .svg, .png or .pdf."""
    check_figure_path(path)
    write_figure(path, render_figure(mcmc_trace_figure(chains), pdf=path.suffix == ".pdf"))


def _draw(figure: Figure, chains: McmcResult) -> None:
    grid = figure.add_gridspec(2, 2, hspace=0.55, wspace=0.35, height_ratios=(1.2, 1))
    _draw_energies(figure.add_subplot(grid[0, :]), chains)
    _draw_autocorrelation(figure.add_subplot(grid[1, 0]), chains)
    _draw_acceptance(figure.add_subplot(grid[1, 1]), chains)


def _draw_energies(axes: Axes, chains: McmcResult) -> None:
    every = chains.trace.every
    for index, energies in enumerate(chains.trace.energies[:MAX_LINES]):
        finite = [value if math.isfinite(value) else math.nan for value in energies]
        steps = [every * record for record in range(len(finite))]
        axes.plot(steps, finite, linewidth=0.9, alpha=0.8, **line_style(index))
    axes.axvspan(
        0,
        min(chains.burn_in, max(chains.steps, 1)),
        color=FOREGROUND_COLOUR,
        alpha=0.07,
        linewidth=0,
    )
    axes.set_xlim(0, max(chains.steps, 1))
    if chains.burn_in:
        axes.text(
            *(0.006, 0.97, "burn-in"),
            transform=axes.transAxes,
            va="top",
            fontsize=8,
            color=FOREGROUND_COLOUR,
            alpha=0.7,
        )
    axes.set_ylabel(f"energy ({chains.energy}), nats", color=FOREGROUND_COLOUR)
    _label_steps(axes)
    diagnostics = chains.diagnostics
    summary = (
        f"R-hat {_number(diagnostics.r_hat)},  effective sample size "
        f"{_number(diagnostics.effective_sample_size, 0)}"
    )
    axes.set_title(
        f"{summary} of {diagnostics.recorded:,}", fontsize=10, color=FOREGROUND_COLOUR, loc="left"
    )


def _draw_autocorrelation(axes: Axes, chains: McmcResult) -> None:
    autocorrelation = chains.diagnostics.autocorrelation
    lags = [chains.trace.every * lag for lag in range(len(autocorrelation))]
    axes.vlines(lags, 0, autocorrelation, color=colour(0), linewidth=1.6)
    axes.axhline(0, color=FOREGROUND_COLOUR, linewidth=0.8)
    axes.set_ylim(min(-0.1, *autocorrelation, 0.0), 1.05)
    axes.set_xlabel("steps apart", color=FOREGROUND_COLOUR)
    axes.set_ylabel("autocorrelation", color=FOREGROUND_COLOUR)


def _draw_acceptance(axes: Axes, chains: McmcResult) -> None:
    trace = chains.trace
    curves: Sequence[tuple[str, Sequence[float]]] = (
        ("accepted", trace.accepted),
        ("changed", trace.changed),
    )
    for index, (name, shares) in enumerate(curves):
        steps, means = _in_windows(shares, trace.every)
        axes.plot(steps, means, linewidth=1.4, label=name, color=colour(index))
    axes.set_ylim(0, 1.05)
    axes.set_xlim(0, max(chains.steps, 1))
    axes.set_ylabel("share of steps", color=FOREGROUND_COLOUR)
    _label_steps(axes)
    add_legend(axes)


def _in_windows(shares: Sequence[float], every: int) -> tuple[list[float], list[float]]:
    """Means over at most 50 windows, since single steps of a few chains are noisy."""
    size = max(1, -(-len(shares) // 50))
    groups = [shares[first : first + size] for first in range(0, len(shares), size)]
    ends = [every * min((index + 1) * size, len(shares)) for index in range(len(groups))]
    return [float(end) for end in ends], [sum(group) / len(group) for group in groups]


def _label_steps(axes: Axes) -> None:
    axes.set_xlabel("step", color=FOREGROUND_COLOUR)
    axes.xaxis.set_major_formatter(lambda value, _: abbreviate_count(value))


def _number(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "unknown"
