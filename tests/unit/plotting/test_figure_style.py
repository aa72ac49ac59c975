"""Figure options for papers: exact sizes, fonts as vector text, titles, formats; defaults stay."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.figure_style import FigureFileStyle, FigureStyle, parse_figure_size, parse_formats
from lmlab.plotting.charts import HeatMap, HeatMapAxis, draw_heat_maps, heat_maps_size
from lmlab.plotting.figure import FigureSpec, render_figure, write_figures
from lmlab.plotting.figure_styling import TITLE


def draw_line(figure: Figure) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.plot([0, 1, 2], [3, 1, 2], label="a model")
    axes.set_xlabel("tokens seen")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_title("a curve", loc="left", fontsize=11).set_label(TITLE)


def draw_untitled(figure: Figure) -> None:
    axes = figure.subplots()
    axes.bar([0, 1], [1, 2])
    axes.set_ylabel("nats")


GRID = HeatMap(
    values=np.arange(12.0).reshape(3, 4),
    rows=HeatMapAxis(name="query", labels=("one", "two", "three")),
    columns=HeatMapAxis(name="key", labels=("a", "long label", "ß", "d")),
)
WIDTH, HEIGHT = heat_maps_size([GRID])
LINE = FigureSpec(name="line", title="a curve", caption="", draw=draw_line, width=3, height=2)
UNTITLED = FigureSpec(name="bars", title="bars", caption="", draw=draw_untitled, width=3, height=2)
MAP = FigureSpec(
    name="map",
    title="map",
    caption="",
    draw=lambda figure: draw_heat_maps(figure, [GRID], title="attention"),
    width=WIDTH,
    height=HEIGHT,
)
FIXED = replace(LINE, name="fixed", fixed_layout=True)


def svg_size(svg: str) -> tuple[float, float]:
    match = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    assert match is not None
    return float(match[1]), float(match[2])


def font_sizes(svg: str) -> set[float]:
    return {float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)} | {
        float(size) for size in re.findall(r"font: (?:\w+ )?([\d.]+)px", svg)
    }


@pytest.mark.parametrize("spec", [LINE, UNTITLED, MAP, FIXED], ids=lambda spec: spec.name)
def test_a_figure_has_exactly_the_given_size(spec: FigureSpec) -> None:
    style = FigureStyle(figure_size=(3.3, 2.5), font_size=8, dpi=200)
    rendered = render_figure(spec, style, pdf=True)
    assert svg_size(rendered.svg) == pytest.approx((3.3 * 72, 2.5 * 72), abs=0.01)
    with Image.open(io.BytesIO(rendered.png)) as image:
        assert image.size == (660, 500)
        pixels = np.asarray(image.convert("L"))
    # Nothing is cut: a margin is white on every side.
    edges = (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:])
    assert all((edge == 255).all() for edge in edges)
    box = re.search(rb"/MediaBox \[ *([\d. ]+)\]", rendered.pdf)
    assert box is not None
    assert [float(x) for x in box[1].split()] == pytest.approx([0, 0, 237.6, 180], abs=0.01)


def test_fonts_and_sizes_are_text_in_the_file() -> None:
    plain, styled = (
        render_figure(LINE, style).svg
        for style in (FigureStyle(), FigureStyle(font="dejavu serif", font_size=20))
    )
    assert ">tokens seen</text>" in styled and "<text" in styled
    assert "'DejaVu Serif', system-ui" in styled and "DejaVu" not in plain
    assert font_sizes(plain) == {10, 11} and font_sizes(styled) == {20, 22}


def test_titles_are_replaced_removed_or_added() -> None:
    def texts(spec: FigureSpec, title: str | None) -> list[str]:
        return re.findall(r">([^<>\n]+)</text>", render_figure(spec, FigureStyle(title=title)).svg)

    assert "a curve" in texts(LINE, None)
    assert "mine" in texts(LINE, "mine") and "a curve" not in texts(LINE, "mine")
    assert "a curve" not in texts(LINE, "")
    assert "mine" in texts(UNTITLED, "mine")
    assert "attention" in texts(MAP, None) and "attention" not in texts(MAP, "")


def test_the_default_style_changes_nothing() -> None:
    for spec in (LINE, FIXED):
        one, other = render_figure(spec), render_figure(spec, FigureStyle(dpi=160))
        assert (one.svg, one.png_bytes, one.pdf) == (other.svg, other.png_bytes, b"")
        assert re.search(r'<svg[^>]* width="[\d.]+"', one.svg) and 'pt"' not in one.svg[:400]


def test_text_shrinks_where_labels_leave_no_room_and_says_so() -> None:
    with pytest.warns(LmlabWarning, match=r"labels leave no room .* text was reduced to \d\d%"):
        rendered = render_figure(LINE, FigureStyle(figure_size=(2.0, 1.0)))
    assert svg_size(rendered.svg) == pytest.approx((144, 72), abs=0.01)
    with pytest.raises(UserError, match=r"figure_size 0\.5x0\.5 leaves no room"):
        render_figure(LINE, FigureStyle(figure_size=(0.5, 0.5), font_size=40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render_figure(LINE, FigureStyle(figure_size=(3.3, 2.5), font_size=8))


def test_pdf_has_text_and_the_same_bytes_every_time() -> None:
    style = FigureStyle(title="Ein Titel")
    one, other = (render_figure(LINE, style, pdf=True).pdf for _ in range(2))
    assert one == other and one.startswith(b"%PDF")
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", one, re.DOTALL)
    content = b"".join(zlib.decompress(s) for s in streams if s[:1] == b"x")
    assert b"BT" in content and b"Tf" in content  # text in a font, not outlines
    assert b"/TrueType" in one or b"/CIDFontType2" in one


def test_files_are_written_in_the_formats(tmp_path: Path) -> None:
    names = [path.name for path in write_figures(tmp_path, [LINE])]
    assert names == ["line.svg", "line.png"]
    style = FigureFileStyle(formats=("pdf",))
    assert [path.name for path in write_figures(tmp_path / "x", [LINE], style)] == ["line.pdf"]
    assert (tmp_path / "x" / "line.pdf").read_bytes().startswith(b"%PDF")
    assert {path.suffix for path in (tmp_path / "x").iterdir()} == {".pdf"}


def test_sizes_and_formats_are_parsed() -> None:
    assert parse_figure_size("3.3x2.5") == parse_figure_size(" 3.3 × 2.5") == (3.3, 2.5)
    assert parse_formats("pdf, SVG") == ("svg", "pdf")
    assert FigureFileStyle().suffixes == (".svg", ".png")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parse_figure_size("3.3"), r"width x height in inches, such as 3\.3x2\.5"),
        (lambda: parse_formats("svg,jpg"), "no figure format called 'jpg'"),
        (lambda: FigureStyle(figure_size=(0.1, 3)), r"figure_size must be from 0\.5 to 60"),
        (lambda: FigureStyle(font_size=1), "font_size must be from 3 to 72, got 1"),
        (lambda: FigureStyle(dpi=5), "dpi must be from 20"),
        (lambda: render_figure(LINE, FigureStyle(font="DejaVu Sanz")), "did you mean"),
    ],
)
def test_wrong_options_are_refused(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
