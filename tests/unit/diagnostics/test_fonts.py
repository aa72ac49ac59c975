"""PNGs take any installed font that has the glyphs, and say which to install where none has."""

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
    """A font whose glyph for each letter is a black square, which no other font draws."""
    names = [".notdef", *(f"g{place}" for place in range(len(letters)))]
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square, empty = pen.glyph(), TTGlyphPen(None).glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    builder.setupGlyf({name: square if place else empty for place, name in enumerate(names)})
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=1000, descent=0)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The fonts of this machine: matplotlib's own and those in this list, which it has not seen."""
    found: list[Path] = []
    own = [e for e in font_manager.fontManager.ttflist if "mpl-data" in str(e.fname)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(path) for path in found])
    monkeypatch.setattr(fonts, "_warned", set())
    _forget()
    yield found
    _forget()


def _forget() -> None:
    fonts.fallback_fonts.cache_clear()
    fonts._candidates.cache_clear()


def drawn(text: str, **look: str) -> RenderedFigure:
    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_title(text, **look)
        axes.set_xticks([0.5], [text])

    return render_figure(FigureSpec(name="x", title="x", caption="x", draw=draw, width=2, height=1))


def test_any_installed_font_with_the_glyphs_is_taken(installed, tmp_path: Path) -> None:
    """A serif font that no list names, installed after matplotlib made its own list of fonts."""
    boxes = drawn(TEXT)
    assert boxes.missing_glyphs == "中国"
    installed.append(make_font(tmp_path / "a.ttf", "Odd Song Serif", "中国"))
    _forget()
    found = drawn(TEXT)
    assert found.missing_glyphs == ""
    assert found.png_bytes != boxes.png_bytes
    assert fonts.fallback_fonts(frozenset("中国")) == (("Odd Song Serif",), "")


def test_one_font_for_each_script_where_none_has_all(installed, tmp_path: Path) -> None:
    installed.append(make_font(tmp_path / "a.ttf", "Chinese Only", "中国"))
    installed.append(make_font(tmp_path / "b.ttf", "Hindi Only", "क"))
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    installed.append(tmp_path / "broken.ttf")
    families, missing = fonts.fallback_fonts(frozenset("中国कআ"))
    assert families == ("Chinese Only", "Hindi Only")
    assert missing == "আ"


def test_a_missing_font_is_named_once_and_only_for_pngs(installed) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = drawn(TEXT)
        assert "中国 cat" in found.svg
        assert caught == []  # the SVG takes the viewer's fonts
        assert found.png.startswith(b"\x89PNG")
        assert drawn("首都").png
        assert drawn("क").png
    said = [str(each.message) for each in caught if each.category is LmlabWarning]
    assert len(said) == len(caught) == 2
    assert "glyphs 中国" in said[0]
    assert "fonts-noto-cjk" in said[0]
    assert "fonts-wqy-zenhei" in said[0]
    assert "fonts-noto-core" in said[1]


def test_what_has_no_glyph_by_design_is_not_missing(installed) -> None:
    """Control characters, zero-width joiners and variation selectors; Latin, Greek, Cyrillic."""
    assert drawn("naïve λόγος мир\u200d\ufe0f\u00a0").missing_glyphs == ""


def test_a_bold_letter_of_a_font_without_bold_makes_no_noise(installed, tmp_path, caplog) -> None:
    installed.append(make_font(tmp_path / "a.ttf", "Chinese Only", "中国"))
    assert drawn(TEXT, fontweight="bold").missing_glyphs == ""
    assert caplog.records == []


def test_svgs_end_their_fonts_with_a_generic_family(installed) -> None:
    svg = drawn(TEXT, fontweight="bold").svg
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
    return any({*map(ord, CHINESE)} <= {*(found or ())} for found in maps)


def test_chinese_is_drawn_by_an_installed_font(tmp_path: Path) -> None:
    """Boxes are all alike, letters are not: each of them has its own picture."""
    if not any(map(has_chinese, sorted(font_manager.findSystemFonts()))):
        pytest.skip("no installed font has Chinese letters")
    fonts._warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = {drawn(letter).png for letter in CHINESE}
        assert len(pictures) == len(set(CHINESE))
    command = ("show-objective", "bert", "--text", CHINESE, "--out", tmp_path / "x.png")
    words = [sys.executable, "-m", "lmlab", *map(str, command)]
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    assert told.stderr == ""  # no warning of boxes
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
