"""Training figures: retrieval probabilities and norms over training, gradient norm by distance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmlab.core.errors import UserError
from lmlab.inspection.gradient_flow import GradientByDistance, measure_gradient_by_distance
from lmlab.inspection.inspected_models import InspectedModel, batches_by_length, embedding_name
from lmlab.plotting.figure import (
    FigureSpec,
    abbreviate_count,
    add_legend,
    line_style,
    printable_name,
    set_plain_log_scale,
)
from lmlab.plotting.figure_styling import TITLE
from lmlab.training.training_logs import RETRIEVED_EVENT

MAX_DOCUMENTS = 5
"""Most documents shown per text, those that were ever the most probable."""
DocumentProbabilities = dict[str, list[float]]
"""p(document) at each evaluation, by name."""


def retrieval_figures(subject: InspectedModel) -> list[FigureSpec]:
    """A figure for each tracked held-out text; none without retrieval."""
    steps, probabilities = retrieval_over_training(subject.metrics)
    return [
        FigureSpec(
            name=f"retrieval-{number}",
            title=f"retrieved over training “{printable_name(text)}”",
            caption="Retrieval probability of each document for this text during training: "
            "does one rise above the others, and is it the one that helps? A line "
            "that drops to zero was no longer retrieved. “no document” is the null "
            "document.",
            draw=partial(draw_document_probabilities, steps=steps, shares=_likeliest(shares)),
            width=5.2,
            height=2.6,
        )
        for number, (text, shares) in enumerate(probabilities.items(), start=1)
        if len(steps) > 1
    ]


def retrieval_over_training(
    lines: Iterable[Mapping[str, Any]],
) -> tuple[list[int], dict[str, DocumentProbabilities]]:
    """Evaluation steps, and p(document) at each for every text, 0 if not retrieved."""
    evaluations = [line for line in lines if line.get("event") == RETRIEVED_EVENT]
    probabilities: dict[str, DocumentProbabilities] = {}
    for index, line in enumerate(evaluations):
        for text in line["texts"]:
            shares = probabilities.setdefault(text["text"], {})
            for name, share in text["documents"].items():
                shares.setdefault(name, [0.0] * len(evaluations))[index] = float(share)
    return [int(line["step"]) for line in evaluations], probabilities


def _likeliest(shares: DocumentProbabilities) -> DocumentProbabilities:
    best = sorted(shares, key=lambda name: -max(shares[name]))[:MAX_DOCUMENTS]
    return {name: shares[name] for name in best}


def draw_document_probabilities(
    figure: Figure, steps: list[int], shares: DocumentProbabilities
) -> None:
    """A line per document."""
    axes = figure.add_axes((0, 0, 1, 1))
    for index, (name, values) in enumerate(shares.items()):
        axes.plot(
            steps, values, marker="o", markersize=3, label=printable_name(name), **line_style(index)
        )
    axes.set_xlabel("training steps")
    axes.set_ylabel("p(document | text)")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: abbreviate_count(value))
    add_legend(axes)


Points = tuple[tuple[float, float], ...]
"""Pairs of training tokens seen and a value."""
NORM_PANELS = {
    "norm of the token embeddings": "mean length",
    "gradient before clipping": "norm",
    "step against weights": "‖change‖ / ‖weights‖",
}
NORMS_CAPTION = (
    "Left: do the token embeddings grow while the loss no longer falls? Then the model uses "
    "their norm where a direction would do. Middle: a gradient norm that grows or spikes "
    "calls for a lower learning rate, one near zero for a higher. Right: an update ratio of "
    "1e-3 per step is customary."
)
GRADIENT_CAPTION = (
    "How much the last prediction of a sentence depends on the word so many positions before "
    "it, on a log scale: a straight line down is a memory that decays by the same factor at "
    "every step; a flat line does not decay."
)


def norm_figures(subjects: Sequence[InspectedModel]) -> list[FigureSpec]:
    """Norms over training of one or several runs; none if the metrics have no norms."""
    norms = {subject.name: norms_over_training(subject.metrics) for subject in subjects}
    panels = [name for name in NORM_PANELS if any(curves.get(name) for curves in norms.values())]
    if not panels:
        return []
    caption = f"From left to right: {', '.join(panels)}, by training tokens seen."
    return [
        FigureSpec(
            name="norms",
            title="norms over training",
            caption=NORMS_CAPTION if len(panels) == len(NORM_PANELS) else caption,
            draw=partial(draw_norms, norms=norms, panels=panels),
            width=3.1 * len(panels),
            height=2.4,
            fixed_layout=True,
        )
    ]


def norms_over_training(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Points]]:
    """For each panel its curves by name, from the lines of metrics.jsonl."""
    tokens, panels = (0.0, {name: dict[str, list[tuple[float, float]]]() for name in NORM_PANELS})
    lengths, gradient, change = panels.values()
    for line in lines:
        if line.get("event") != "train":
            continue
        tokens += float(line.get("count", 0))
        vector_norms: dict[str, Any] = line.get("vector_norms") or {}
        for name, value in vector_norms.items():
            _add(lengths, embedding_name(name), tokens, value)
        _add(gradient, "", tokens, line.get("gradient_norm"))
        _add(change, "", tokens, line.get("update_ratio"))
    return {
        panel: {name: tuple(points) for name, points in curves.items()}
        for panel, curves in panels.items()
    }


def _add(
    curves: dict[str, list[tuple[float, float]]], name: str, tokens: float, value: Any
) -> None:
    if isinstance(value, (int, float)) and math.isfinite(value):
        curves.setdefault(name, []).append((tokens, float(value)))


def draw_norms(
    figure: Figure, norms: Mapping[str, dict[str, dict[str, Points]]], panels: Sequence[str]
) -> None:
    """A panel per norm, a colour per run, dashes for its embedding tables."""
    figure.subplots_adjust(wspace=0.42, left=0, right=1, bottom=0, top=1)
    panel_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(panel_axes, panels, strict=True):
        for index, (run, run_norms) in enumerate(norms.items()):
            for dash, (part, points) in enumerate(run_norms.get(panel, {}).items()):
                name = " ".join(word for word in (run if len(norms) > 1 else "", part) if word)
                style = line_style(index)["color"], line_style(8 * dash)["linestyle"]
                axes.plot(
                    *zip(*points, strict=True),
                    color=style[0],
                    linestyle=style[1],
                    linewidth=1.4,
                    label=printable_name(name) if name else None,
                    marker="o" if len(points) == 1 else None,
                )
        _format_panel(axes, panel)
    # The first panel has every curve of the others; its legend stands at the end of the row.
    handles, names = panel_axes[0].get_legend_handles_labels()
    if len(names) > 1:
        add_legend(panel_axes[-1], handles, names)


def _format_panel(axes: Axes, panel: str) -> None:
    axes.set_title(panel, loc="left", fontsize=10)
    axes.set_xlabel("training tokens seen")
    axes.set_ylabel(NORM_PANELS[panel], fontsize=9)
    axes.xaxis.set_major_formatter(lambda value, _: abbreviate_count(value))
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(labelsize=8)
    lowest, highest = axes.get_ylim()
    if panel == "step against weights" and lowest >= 0 and highest > 0:
        set_plain_log_scale(axes)
    else:
        axes.set_ylim(0, highest)


def gradient_figures(subjects: Sequence[InspectedModel]) -> list[FigureSpec]:
    """Gradient norm against distance, all runs in one figure, skipping those without embeddings."""
    gradients: dict[str, GradientByDistance] = {}
    for subject in subjects:
        texts = (*subject.sentences, *subject.sample)
        if subject.system.fitting != "gradient":
            continue
        try:
            measured = measure_gradient_by_distance(
                subject.system, batches_by_length(subject.system, texts)
            )
        except UserError:
            continue
        if measured.max_reach:
            gradients[subject.name] = measured
    if not gradients:
        return []
    return [
        FigureSpec(
            name="gradient",
            title="gradient against distance",
            caption=GRADIENT_CAPTION,
            draw=partial(draw_gradient_by_distance, gradients=gradients),
            width=5.2,
            height=3.0,
        )
    ]


def draw_gradient_by_distance(figure: Figure, gradients: Mapping[str, GradientByDistance]) -> None:
    """A line per run on a log scale, with the decay per step in the legend."""
    axes = figure.add_axes((0, 0, 1, 1))
    set_plain_log_scale(axes)
    highest = max(max(gradient.norms) for gradient in gradients.values())
    for index, (name, gradient) in enumerate(gradients.items()):
        pairs = zip(gradient.distances, gradient.norms, strict=True)
        points = [(d, n) for d, n in pairs if n > highest * 1e-12]
        if not points:
            continue
        factor = gradient.factor
        decay = "" if factor is None else f", × {factor:.2f} per step"
        style = line_style(index)
        label = printable_name(name) + decay
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label, **style)
    axes.set_title("gradient against distance", loc="left", fontsize=11).set_label(TITLE)
    axes.set_xlabel("distance in positions, 1 is the previous word")
    axes.set_ylabel("‖∂ loss / ∂ embedding‖")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(axes)
