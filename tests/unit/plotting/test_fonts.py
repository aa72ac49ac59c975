"""PNGs use any installed font with the glyphs; a warning names fonts to install."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont, TTLibError
from matplotlib import font_manager
from matplotlib.figure import Figure

from lmlab.core.errors import LmlabWarning
from lmlab.plotting import fonts
from lmlab.plotting.figure import FigureSpec, RenderedFigure, render_figure

TEXT = "中国 cat"


def make_font(path: Path, family: str, letters: str) -> Path:
    """A font whose glyph for each letter is a black square, unlike any other font."""
    names = [".notdef", *(f"g{index}" for index in range(len(letters)))]
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square, empty = pen.glyph(), TTGlyphPen(None).glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    builder.setupGlyf({name: square if index else empty for index, name in enumerate(names)})
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The fonts of this machine: matplotlib's own and those in this list."""
    installed_paths: list[Path] = []
    own = [e for e in font_manager.fontManager.ttflist if "mpl-data" in str(e.fname)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(
        font_manager, "findSystemFonts", lambda: [str(path) for path in installed_paths]
    )
    monkeypatch.setattr(fonts, "_warned", set())
    _clear_font_caches()
    yield installed_paths
    _clear_font_caches()


def _clear_font_caches() -> None:
    fonts.fallback_fonts.cache_clear()
    fonts._candidates.cache_clear()


def render_text(text: str, **style: str) -> RenderedFigure:
    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_title(text, **style)
        axes.set_xticks([0.5], [text])

    return render_figure(FigureSpec(name="x", title="x", caption="x", draw=draw, width=2, height=1))


def test_any_installed_font_with_the_glyphs_is_used(installed, tmp_path: Path) -> None:
    """An unlisted serif font, installed after matplotlib cached its list of fonts."""
    boxes = render_text(TEXT)
    assert boxes.missing_glyphs == "中国"
    installed.append(make_font(tmp_path / "a.ttf", "Odd Song Serif", "中国"))
    _clear_font_caches()
    rendered = render_text(TEXT)
    assert rendered.missing_glyphs == ""
    assert rendered.png_bytes != boxes.png_bytes
    assert fonts.fallback_fonts(frozenset("中国")) == (("Odd Song Serif",), "")


def test_fallback_fonts_cover_each_script(installed, tmp_path: Path) -> None:
    installed.append(make_font(tmp_path / "a.ttf", "Chinese Only", "中国"))
    installed.append(make_font(tmp_path / "b.ttf", "Hindi Only", "क"))
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    installed.append(tmp_path / "broken.ttf")
    families, missing = fonts.fallback_fonts(frozenset("中国कআ"))
    assert families == ("Chinese Only", "Hindi Only")
    assert missing == "আ"


def test_missing_font_warns_once_and_for_pngs_only(installed) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rendered = render_text(TEXT)
        assert "中国 cat" in rendered.svg
        assert caught == []  # the SVG uses the viewer's fonts
        assert rendered.png.startswith(b"\x89PNG")
        assert render_text("首都").png
        assert render_text("क").png
    messages = [str(warning.message) for warning in caught if warning.category is LmlabWarning]
    assert len(messages) == len(caught) == 2
    assert "glyphs 中国" in messages[0]
    assert "fonts-noto-cjk" in messages[0]
    assert "fonts-wqy-zenhei" in messages[0]
    assert "fonts-noto-core" in messages[1]


def test_invisible_characters_are_not_missing_glyphs(installed) -> None:
    """Control characters, zero-width joiners and variation selectors; Latin, Greek, Cyrillic."""
    assert render_text("naïve λόγος мир\u200d\ufe0f\u00a0").missing_glyphs == ""


def test_bold_text_in_a_font_without_bold_logs_nothing(installed, tmp_path, caplog) -> None:
    installed.append(make_font(tmp_path / "a.ttf", "Chinese Only", "中国"))
    assert render_text(TEXT, fontweight="bold").missing_glyphs == ""
    assert caplog.records == []


def test_svg_font_families_end_with_a_generic_family(installed) -> None:
    svg = render_text(TEXT, fontweight="bold").svg
    families = [part.split(";")[0].split('"')[0] for part in svg.split("font-family:")[1:]]
    assert len(families) >= 2
    assert all(family.endswith(" sans-serif") for family in families)
    assert "font:" not in svg


CHINESE = "中国的首都是北京"


def has_chinese(path: str) -> bool:
    """Whether a font has the letters of CHINESE, by fontTools and not by the code tested."""
    try:
        if path.endswith(".ttc"):
            with TTCollection(path, lazy=True) as faces:
                maps = [face.getBestCmap() for face in faces]
        else:
            with TTFont(path, lazy=True) as face:
                maps = [face.getBestCmap()]
    except (TTLibError, OSError):
        return False
    return any({*map(ord, CHINESE)} <= {*(cmap or ())} for cmap in maps)


def test_chinese_is_rendered_by_an_installed_font(tmp_path: Path) -> None:
    """Missing glyphs are identical boxes, letters are not: each has its own image."""
    if not any(map(has_chinese, sorted(font_manager.findSystemFonts()))):
        pytest.skip("no installed font has Chinese letters")
    fonts._warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = {render_text(letter).png for letter in CHINESE}
        assert len(images) == len(set(CHINESE))
    command = ("show-objective", "bert", "--text", CHINESE, "--out", tmp_path / "x.png")
    arguments = [sys.executable, "-m", "lmlab", *map(str, command)]
    completed = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert completed.stderr == ""  # no warning about missing glyphs
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
