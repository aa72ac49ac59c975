"""A sentence with the entities that its words are taken for, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from matplotlib.axes import Axes

from lmlab.diagnostics.canvas import INK, as_svg, canvas, colour, shown_name
from lmlab.scoring.links import LinkedMention, LinkedText
from lmlab.training.files import telling_disk_errors, write_text

LETTER, LINE = 0.095, 0.3
"""Inches of a letter of the text and of a line of names."""


def linked_sentence(linked: LinkedText) -> str:
    """The text, and below each mention a bar with its entity's title and probability.

    The bar is as dark as the mention is sure; mentions that overlap stand below each other.
    """
    lines = _lines(linked.mentions)
    height = LINE * (2 + 2 * max(lines, default=0))
    with canvas("links", height=height, width=max(4.0, LETTER * len(linked.text))) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, max(1, len(linked.text)))
        axes.set_ylim(-2 * max(lines, default=0) - 0.5, 1.5)
        axes.axis("off")
        for place, letter in enumerate(linked.text):
            axes.text(place + 0.5, 0.3, letter, ha="center", family="monospace", fontsize=10)
        for number, (mention, line) in enumerate(zip(linked.mentions, lines, strict=True)):
            _draw(axes, mention, line, number)
        return as_svg(figure)


def _draw(axes: Axes, mention: LinkedMention, line: int, number: int) -> None:
    height = 1.0 - 2 * line
    ends = (mention.start + 0.1, mention.end - 0.1)
    sure = 0.25 + 0.75 * mention.probability
    axes.plot(ends, (height, height), color=colour(number), linewidth=4, alpha=sure)
    name = "(none)" if mention.entity is None else shown_name(mention.title)
    axes.text(
        mention.start + 0.1,
        height - 0.3,
        f"{name} {mention.probability:.2f}",
        va="top",
        fontsize=8,
        color=INK,
    )


def _lines(mentions: tuple[LinkedMention, ...]) -> list[int]:
    """The line of each mention, from 1: the first on which its name runs into no other."""
    free: list[float] = []
    found = []
    for mention in mentions:
        name = len(mention.title or "(none)") + 6
        end = max(mention.end, mention.start + 0.8 * name)
        line = next((n for n, used in enumerate(free) if used <= mention.start), len(free))
        free[line : line + 1] = [end]
        found.append(line + 1)
    return found


def draw_links(texts: Iterable[LinkedText], folder: Path) -> Iterator[LinkedText]:
    """The same texts, each drawn into the folder as `text-1.svg` and so on when it is taken."""
    with telling_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for number, linked in enumerate(texts, 1):
        write_text(folder / f"text-{number}.svg", linked_sentence(linked))
        yield linked
