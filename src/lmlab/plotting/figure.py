"""Figures: common style, labels and colours, specification, rendering as SVG, PNG, PDF; files."""

from __future__ import annotations

import io
import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import Bbox

from lmlab.core.atomic_files import telling_disk_errors, write_bytes, write_text
from lmlab.core.errors import UserError
from lmlab.core.figure_style import DEFAULT_DPI, PLAIN_STYLE, FigureFileStyle, FigureStyle
from lmlab.core.html import TableCell
from lmlab.plotting.figure_styling import layout_scale, style_figure
from lmlab.plotting.fonts import (
    BASE_FONT,
    GENERIC_FONTS,
    check_font,
    use_installed_fonts,
    warn_missing_glyphs,
)

COLOURS = ("#4e79d8", "#e07b39", "#3aa36b", "#c4539b", "#8a6fd1", "#b8941f", "#2aa5b8", "#c05a52")
"""Palette of middle tones with contrast to white and to black."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
"""Line styles, for more runs than colours."""
FONTS = (
    "system-ui, 'Helvetica Neue', Arial, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', 'Source Han Sans SC', 'WenQuanYi Micro Hei', sans-serif"
)
FOREGROUND_COLOUR = "#010203"
"""Placeholder for the page's own colour while matplotlib draws; replaced in the finished SVG."""
FIGURE_SUFFIXES = (".svg", ".png", ".pdf")


SCALED_SIZES = (
    *("axes.titlepad", "axes.labelpad", "axes.linewidth", "lines.linewidth", "lines.markersize"),
    *(f"{axis}tick.{kind}.{what}" for axis in "xy" for kind in ("major", "minor")
      for what in ("pad", "size", "width")),
)  # fmt: skip
"""Settings of matplotlib that are scaled together with the text of a fixed layout."""


def colour(index: int) -> str:
    """The colour at an index of the palette, which repeats."""
    return COLOURS[index % len(COLOURS)]


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of a line, distinct for many lines."""
    return {"color": colour(index), "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


@contextmanager
def canvas(
    name: str, *, height: float, width: float = 7.0, font: str = BASE_FONT, scale: float = 1.0
) -> Iterator[Figure]:
    """A figure in the common style; `name` makes the ids of several figures on a page unique.

    `scale`: of lines, ticks and gaps, whose sizes are in points.
    """
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"lmlab-{name}",
        "pdf.fonttype": 42,  # text as text, in TrueType
        "text.parse_math": False,
        "font.size": 10,
        "font.family": list(dict.fromkeys((font, BASE_FONT))),
        "axes.edgecolor": FOREGROUND_COLOUR,
        "axes.labelcolor": FOREGROUND_COLOUR,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": FOREGROUND_COLOUR,
        "xtick.color": FOREGROUND_COLOUR,
        "ytick.color": FOREGROUND_COLOUR,
    }
    if scale != 1.0:
        defaults: Any = matplotlib.rcParamsDefault
        style |= {key: scale * defaults[key] for key in SCALED_SIZES}
    with matplotlib.rc_context(style), warnings.catch_warnings(), _quiet_fonts():
        # The reader's browser has the glyphs that the fonts here lack; for a PNG `fonts` warns.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield Figure(figsize=(width, height))


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Suppress matplotlib's warning that a fallback font has no bold face."""
    logger = logging.getLogger("matplotlib.font_manager")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def as_svg(
    figure: Figure, box: Bbox | Literal["tight"] = "tight", *, style: FigureStyle = PLAIN_STYLE
) -> str:
    """Render as an <svg> element that scales with the page and references no other file.

    One of a given size keeps it in points.
    """
    use_installed_fonts(figure, style.font)
    buffer = io.StringIO()
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", metadata=no_metadata, transparent=True, bbox_inches=box)
    fonts = FONTS if style.font is None else f"{_css_name(style.font)}, {FONTS}"
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(FOREGROUND_COLOUR, "currentColor")
    text = re.sub(r"font-family: [^;\"]*", f"font-family: {fonts}", text)
    text = re.sub(r" *<style.*?</style>\n", "", text, flags=re.DOTALL)
    if style.figure_size is not None:
        return text
    return re.sub(
        r'(<svg[^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', r'\1 width="\2"', text, count=1
    )


def _css_name(font: str) -> str:
    """A font family in an attribute of an SVG: generic ones stay as they are, others are quoted."""
    return font if font in GENERIC_FONTS else "'" + re.sub(r"[^\w .-]", "", font) + "'"


def as_pdf(figure: Figure, box: Bbox) -> bytes:
    """Render as PDF, with its text as text."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="pdf", bbox_inches=box, metadata={"CreationDate": None, "Creator": None}
    )
    return buffer.getvalue()


def as_png(
    figure: Figure, box: Bbox | Literal["tight"] = "tight", *, dpi: int = DEFAULT_DPI
) -> bytes:
    """Render as PNG on white, for where no SVG is accepted."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer,
        format="png",
        dpi=dpi,
        facecolor="white",
        bbox_inches=box,
        metadata={"Software": None},
    )
    return buffer.getvalue()


def set_plain_log_scale(axes: Axes) -> None:
    """Log scale of the y axis with plain number labels, without mathtext."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def add_legend(axes: Axes, handles: Sequence[Any] | None = None, names: Sequence[str] = ()) -> None:
    """Legend to the right of the axes; nothing where no line has a label."""
    if handles is None:
        handles, names = axes.get_legend_handles_labels()
    if names:
        axes.legend(
            handles,
            names,
            frameon=False,
            fontsize=9,
            labelcolor=FOREGROUND_COLOUR,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )


def printable_name(name: str) -> str:
    """A label that is valid XML: no control characters, spaces visible."""
    decoded = _decode_byte_level(name)
    printable = "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in decoded)
    return printable if printable.strip() else "␣" * len(printable)


PRINTABLE_BYTES = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that a byte-level vocabulary (GPT-2's) spells by their own character."""
REMAPPED_BYTES = tuple(byte for byte in range(256) if byte not in PRINTABLE_BYTES)
"""The others, spelled by the characters from 256 on: a space is Ġ."""
BYTE_OF_CHARACTER = {chr(byte): byte for byte in PRINTABLE_BYTES} | {
    chr(256 + place): byte for place, byte in enumerate(REMAPPED_BYTES)
}


def _decode_byte_level(name: str) -> str:
    """Decode byte-level spelling: Ġgr Ã¼n becomes ▁gr ün; anything else stays as it is."""
    if name.isascii() or not all(letter in BYTE_OF_CHARACTER for letter in name):
        return name
    try:
        text = bytes(BYTE_OF_CHARACTER[letter] for letter in name).decode("utf-8")
    except UnicodeDecodeError:
        return name
    return f"▁{text[1:]}" if text.startswith(" ") and text.strip() else text


def abbreviate_count(value: float) -> str:
    """Abbreviated axis numbers: 12k, 3.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class FigureTable:
    """A table next to a figure, where text says more than marks."""

    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureSpec:
    """One figure of a run, or of several side by side."""

    name: str
    """File name of its files, without extension."""
    title: str
    caption: str
    """One or two sentences on how to read it."""
    draw: Callable[[Figure], None]
    """Draws on an empty figure of `width` × `height` inches; labels may extend beyond its edge."""
    width: float = 7.0
    height: float = 3.0
    text: str = ""
    """The sentence it shows, where it shows one."""
    table: FigureTable | None = None
    fixed_layout: bool = False
    """Whether its texts are placed by the inch, so that another size scales all of it."""


@dataclass(frozen=True, kw_only=True)
class RenderedFigure:
    """A rendered figure."""

    svg: str
    png_bytes: bytes
    """The PNG."""
    pdf: bytes = b""
    """The PDF, if it was wanted."""
    missing_glyphs: str = ""
    """Characters that the PNG shows as boxes, because no installed font has them."""

    @property
    def png(self) -> bytes:
        """The PNG; warns, once, where it shows characters as boxes."""
        warn_missing_glyphs(self.missing_glyphs)
        return self.png_bytes


def render_figure(
    spec: FigureSpec, style: FigureStyle = PLAIN_STYLE, *, pdf: bool = False
) -> RenderedFigure:
    """Render a figure; its name makes its ids unique on a page."""
    font = BASE_FONT
    if style.font is not None:
        font = check_font(style.font)
        style = replace(style, font=font)
    scale = _layout_scale(spec, style, font) if spec.fixed_layout else None
    with canvas(
        spec.name, width=spec.width, height=spec.height, font=font, scale=scale or 1.0
    ) as figure:
        spec.draw(figure)
        boxes = use_installed_fonts(figure, style.font)
        box = style_figure(figure, style, scale=scale)
        return RenderedFigure(
            svg=as_svg(figure, box, style=style),
            png_bytes=as_png(figure, box, dpi=style.dpi),
            pdf=as_pdf(figure, box) if pdf else b"",
            missing_glyphs=boxes,
        )


def _layout_scale(spec: FigureSpec, style: FigureStyle, font: str) -> float:
    if style.figure_size is None:
        return style.text_scale
    with canvas(spec.name, width=spec.width, height=spec.height, font=font) as figure:
        spec.draw(figure)
        use_installed_fonts(figure, style.font)
        return layout_scale(figure, style)


def write_figures(
    folder: Path, specs: Sequence[FigureSpec], style: FigureFileStyle = PLAIN_STYLE
) -> list[Path]:
    """Write figures into a folder by their names, in the formats of a style."""
    files: list[Path] = []
    for spec in specs:
        rendered = render_figure(spec, style, pdf=".pdf" in style.suffixes)
        paths = [folder / f"{spec.name}{suffix}" for suffix in style.suffixes]
        for path in paths:
            write_figure(path, rendered)
        files += paths
    return files


def numbered_name(name: str, index: int, of: int) -> str:
    """`surprisal-2`, or `surprisal` where it is the only one."""
    return f"{name}-{index + 1}" if of > 1 else name


def join_remarks(parts: Sequence[str]) -> str:
    """Join remarks, skipping empty ones."""
    return " ".join(part.strip() for part in parts if part.strip())


def standalone_svg(svg: str) -> str:
    """An SVG as a standalone file: text dark on light pages and light on dark ones."""
    style = (
        "<style>svg { color: #1d2430; } "
        "@media (prefers-color-scheme: dark) { svg { color: #e3e7ee; } }</style>"
    )
    head, mark, body = svg.partition(">")
    return f"{head}{mark}\n {style}{body}"


def check_figure_suffix(path: Path) -> None:
    """Reject the file extension of no format."""
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise UserError(
            f"the figure file must end in {' or '.join(FIGURE_SUFFIXES)}, got {path.name}; "
            "the suffix selects the format."
        )


def check_figure_path(path: Path) -> None:
    """Reject another file extension and a folder, before anything is computed."""
    check_figure_suffix(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file to write.")


def write_figure(path: Path, rendered: RenderedFigure) -> None:
    """Write a rendered figure as SVG, PNG or PDF, by file extension."""
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".svg":
        write_text(path, standalone_svg(rendered.svg))
    elif path.suffix.lower() == ".pdf":
        write_bytes(path, rendered.pdf)
    else:
        write_bytes(path, rendered.png)
