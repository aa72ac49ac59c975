"""Retrieval curves: probabilities of retrieved documents over training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from lmlab.inspection.inspected_models import InspectedModel
from lmlab.plotting.canvas import (
    abbreviate_count,
    add_legend,
    line_style,
    printable_name,
)
from lmlab.plotting.figure import FigureSpec
from lmlab.training.retrieval_logging import RETRIEVED_EVENT

MAX_DOCUMENTS = 5
"""Most documents shown per text, those that were ever the most probable."""
DocumentProbabilities = dict[str, list[float]]
"""p(document) at each evaluation, by name."""


def retrieval_figures(subject: InspectedModel) -> list[FigureSpec]:
    """A figure for each tracked held-out text; none without retrieval."""
    steps, followed = retrieval_over_training(subject.metrics)
    return [
        FigureSpec(
            name=f"looked-up-{number}",
            title=f"retrieved over training “{printable_name(text)}”",
            caption="Retrieval probability of each document for this text during training: "
            "does one rise above the others, and is it the one that helps? A line "
            "that drops to zero was no longer retrieved. “no document” is the null "
            "document.",
            draw=partial(draw_document_probabilities, steps=steps, shares=_likeliest(shares)),
            width=5.2,
            height=2.6,
        )
        for number, (text, shares) in enumerate(followed.items(), start=1)
        if len(steps) > 1
    ]


def retrieval_over_training(
    lines: Iterable[Mapping[str, Any]],
) -> tuple[list[int], dict[str, DocumentProbabilities]]:
    """Evaluation steps, and p(document) at each for every text, 0 if not retrieved."""
    looks = [line for line in lines if line.get("event") == RETRIEVED_EVENT]
    followed: dict[str, DocumentProbabilities] = {}
    for place, line in enumerate(looks):
        for text in line["texts"]:
            shares = followed.setdefault(text["text"], {})
            for name, share in text["documents"].items():
                shares.setdefault(name, [0.0] * len(looks))[place] = float(share)
    return [int(line["step"]) for line in looks], followed


def _likeliest(shares: DocumentProbabilities) -> DocumentProbabilities:
    best = sorted(shares, key=lambda name: -max(shares[name]))[:MAX_DOCUMENTS]
    return {name: shares[name] for name in best}


def draw_document_probabilities(
    figure: Figure, steps: list[int], shares: DocumentProbabilities
) -> None:
    """A line per document."""
    axes = figure.add_axes((0, 0, 1, 1))
    for look, (name, values) in enumerate(shares.items()):
        axes.plot(
            steps, values, marker="o", markersize=3, label=printable_name(name), **line_style(look)
        )
    axes.set_xlabel("training steps")
    axes.set_ylabel("p(document | text)")
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: abbreviate_count(value))
    add_legend(axes)
