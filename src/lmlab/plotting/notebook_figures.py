"""Figures inside a notebook's output, in the colour of the notebook's text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lmlab.core.html import Html, inline_svg, tag, visible_text

if TYPE_CHECKING:
    from lmlab.plotting.figure import FigureSpec

ENLARGEMENT = 1.25
"""Page pixels per figure point."""


def notebook_figure(spec: FigureSpec) -> Html:
    """A figure and how to read it; matplotlib is imported only here."""
    from lmlab.plotting.figure import render_figure

    return svg_figure(render_figure(spec).svg, spec.caption)


def svg_figure(svg: str, caption: str) -> Html:
    """A rendered figure at the width that its text needs, and how to read it."""
    width = re.match(r'<svg[^>]*? width="([\d.]+)"', svg)
    points = float(width[1]) if width else 500.0
    sized = svg.replace("<svg", f'<svg style="width:{ENLARGEMENT * points:.0f}px"', 1)
    return tag(
        "figure", inline_svg(sized), tag("figcaption", visible_text(caption), class_="faint")
    )
