"""Options of figures (size, font, title, formats), which every command that draws takes.

Importing this module imports no matplotlib; `plotting/figure_styling.py` applies them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.options import Option

FigureFormat = Literal["svg", "png", "pdf"]
FIGURE_FORMATS: tuple[FigureFormat, ...] = get_args(FigureFormat)
DEFAULT_FORMATS: tuple[FigureFormat, ...] = ("svg", "png")
DEFAULT_FONT_SIZE = 10.0
"""Points of labels; titles and small numbers are in proportion."""
DEFAULT_DPI = 160
MIN_INCHES, MAX_INCHES = 0.5, 60.0
MIN_POINTS, MAX_POINTS = 3.0, 72.0
MIN_DPI, MAX_DPI = 20, 2400
PANEL = "Figures"
SIZE_FORM = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*[x×,]\s*(\d+(?:\.\d*)?|\.\d+)\s*")


def parse_figure_size(text: str) -> tuple[float, float]:
    """Parse 3.3x2.5 as (3.3, 2.5)."""
    match = SIZE_FORM.fullmatch(text)
    if match is None:
        raise UserError(
            f"--figure-size must be width x height in inches, such as 3.3x2.5, got {text!r}."
        )
    return float(match[1]), float(match[2])


def parse_formats(text: str) -> tuple[FigureFormat, ...]:
    """Parse svg,pdf as ("svg", "pdf")."""
    return check_formats([word.strip().lower() for word in text.split(",")])


def check_formats(names: Sequence[str]) -> tuple[FigureFormat, ...]:
    """The formats of these names, each once; a UserError for another."""
    if isinstance(names, str):
        return parse_formats(names)
    for name in names:
        if name not in FIGURE_FORMATS:
            raise unknown_name("figure format", str(name), FIGURE_FORMATS)
    return tuple(known for known in FIGURE_FORMATS if known in names)


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """How figures look, for papers; the defaults are those of pages and reports."""

    figure_size: Annotated[
        tuple[float, float] | None,
        Option(
            "Width and height of each figure in inches, labels included: 3.3x2.5.",
            metavar="WxH",
            parse=parse_figure_size,
            show_default="as its content needs",
            panel=PANEL,
        ),
    ] = None
    font: Annotated[
        str | None,
        Option("Font family of figures.", show_default="sans-serif", metavar="NAME", panel=PANEL),
    ] = None
    font_size: Annotated[
        float | None,
        Option(
            "Font size of labels in points; titles and numbers are in proportion.",
            minimum=MIN_POINTS,
            maximum=MAX_POINTS,
            show_default="10",
            panel=PANEL,
        ),
    ] = None
    title: Annotated[
        str | None,
        Option(
            "Title of every figure; '' for none.",
            metavar="TEXT",
            show_default="its own",
            panel=PANEL,
        ),
    ] = None
    dpi: Annotated[
        int, Option("Dots per inch of PNG figures.", minimum=MIN_DPI, maximum=MAX_DPI, panel=PANEL)
    ] = DEFAULT_DPI

    def __post_init__(self) -> None:
        for called, value, low, high in (
            *(("figure_size", inches, MIN_INCHES, MAX_INCHES) for inches in self.figure_size or ()),
            ("font_size", self.font_size or DEFAULT_FONT_SIZE, MIN_POINTS, MAX_POINTS),
            ("dpi", self.dpi, MIN_DPI, MAX_DPI),
        ):
            if not low <= value <= high:
                raise UserError(f"{called} must be from {low:g} to {high:g}, got {value:g}.")

    @property
    def text_scale(self) -> float:
        """The font size relative to the default."""
        return (self.font_size or DEFAULT_FONT_SIZE) / DEFAULT_FONT_SIZE


@dataclass(frozen=True, kw_only=True)
class FigureFileStyle(FigureStyle):
    """How figures look, and in which formats they are written."""

    formats: Annotated[
        Sequence[FigureFormat],
        Option(
            "Formats of the figure files: svg, png, pdf; several with commas.",
            flag="--format",
            metavar="svg,png,pdf",
            parse=parse_formats,
            show_default="svg,png",
            panel=PANEL,
        ),
    ] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_formats(self.formats)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files: .svg, .png."""
        return tuple(f".{name}" for name in check_formats(self.formats) or DEFAULT_FORMATS)


PLAIN_STYLE = FigureFileStyle()
