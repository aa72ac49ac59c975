"""Entity linking figure: a sentence with its mentions and their entities, as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from unicodedata import east_asian_width

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from lmlab.core.atomic_files import write_text
from lmlab.data.readers import Example
from lmlab.plotting.figure import FOREGROUND_COLOUR, as_svg, canvas, colour, printable_name
from lmlab.plotting.fonts import BASE_FONT, missing_glyphs
from lmlab.scoring.entity_linking import LinkedMention, LinkedText
from lmlab.training.distributed import lock_output

TEXT_FONT_SIZE, NAME_FONT_SIZE = 11, 8
"""Font sizes of the text and of the entity names."""
LINE_INCHES, NAME_GAP_INCHES = 0.36, 0.1
"""Inches of a line of names, and between two names on it."""


def entity_links_svg(linked: LinkedText) -> str:
    """The text, and below each mention a bar with its entity's title and probability.

    The bar's darkness is the probability; overlapping mentions are stacked.
    """
    positions = letter_positions(linked.text)
    lines = _lines(linked.mentions, positions)
    width = max([positions[-1], *(_name_end(mention_, positions) for mention_ in linked.mentions)])
    depth = LINE_INCHES * max(lines, default=0)
    with canvas("links", height=depth + 0.4, width=width + 0.1) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(-0.05, width + 0.05)
        axes.set_ylim(-depth - 0.1, 0.3)
        axes.axis("off")
        for word in re.finditer(r"\S+", linked.text):
            axes.text(
                positions[word.start()], 0.05, printable_name(word.group()), fontsize=TEXT_FONT_SIZE
            )
        for number, (mention, line) in enumerate(zip(linked.mentions, lines, strict=True)):
            ends = (positions[mention.start], positions[mention.end])
            _draw(axes, mention, ends, -LINE_INCHES * (line - 1), number)
        return as_svg(figure)


def letter_positions(text: str) -> list[float]:
    """x position in inches of each character, and of the end of the last one."""
    return [text_width_inches(text[:index], TEXT_FONT_SIZE) for index in range(len(text) + 1)]


def text_width_inches(text: str, size: float) -> float:
    """Width of a line of text in inches, in the figures' font."""
    missing = missing_glyphs(BASE_FONT, text)
    covered = "".join(letter for letter in text if letter not in missing)
    # The viewer's font decides on characters missing in ours: Chinese ones count as square.
    ems = sum(1.0 if east_asian_width(c) in "WF" else 0.6 for c in text if c in missing)
    # Trailing spaces count, as a word follows them.
    return _width(f"{covered}|", size) - _width("|", size) + ems * size / 72


def _width(text: str, size: float) -> float:
    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family=BASE_FONT, size=size), ismath=False
    )
    return float(width) / 72


def _draw(
    axes: Axes, mention: LinkedMention, ends: tuple[float, float], top: float, number: int
) -> None:
    alpha = 0.25 + 0.75 * mention.probability
    height = (top - 0.04, top - 0.04)
    axes.plot(ends, height, color=colour(number), linewidth=4, alpha=alpha, solid_capstyle="butt")
    axes.text(
        ends[0],
        top - 0.1,
        _name(mention),
        va="top",
        fontsize=NAME_FONT_SIZE,
        color=FOREGROUND_COLOUR,
    )


def _name(mention: LinkedMention) -> str:
    name = "(none)" if mention.entity is None else printable_name(mention.title)
    return f"{name} {mention.probability:.2f}"


def _name_end(mention: LinkedMention, positions: Sequence[float]) -> float:
    """x position in inches where the label of a mention ends."""
    return max(
        positions[mention.end],
        positions[mention.start] + text_width_inches(_name(mention), NAME_FONT_SIZE),
    )


def _lines(mentions: Sequence[LinkedMention], positions: Sequence[float]) -> list[int]:
    """The line of each mention, from 1: the first on which its label overlaps no other."""
    free: list[float] = []
    assigned = []
    for mention in mentions:
        start, end = positions[mention.start], _name_end(mention, positions) + NAME_GAP_INCHES
        line = next((n for n, used in enumerate(free) if used <= start), len(free))
        free[line : line + 1] = [end]
        assigned.append(line + 1)
    return assigned


def with_entity_link_figures(
    texts: Iterable[tuple[Example, LinkedText | None]], folder: Path
) -> Iterator[tuple[Example, LinkedText | None]]:
    """Pass the texts on; write `text-n.svg` for line n when it is consumed."""
    with lock_output(folder):
        for example, linked in texts:
            if linked is not None:
                write_text(folder / f"text-{example.line}.svg", entity_links_svg(linked))
            yield example, linked
