"""Font fallback for PNGs: any installed font that has the glyphs, or a warning that names one.

matplotlib's own font covers Latin, Greek and Cyrillic, some Arabic and no Chinese. For characters
that it lacks, the character maps of the installed fonts are searched.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

from lmlab.core.errors import LmlabWarning, unknown_name

BASE_FONT = "DejaVu Sans"
"""The font that comes with matplotlib."""
PREFERRED_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
)
"""Preferred among fonts with as many of the glyphs: sans-serif, simplified Chinese forms."""
PLACEHOLDERS = ("Last Resort",)
"""Fonts whose glyph for any character is a box."""
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp", "Cs", "Co", "Cn")
"""Unicode categories without a glyph."""
PACKAGES = {
    "fonts-noto-cjk (or the smaller fonts-wqy-zenhei)": (
        *("CJK", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH", "HIRAGANA", "KATAKANA"),
        *("KATAKANA-HIRAGANA", "BOPOMOFO", "HANGUL"),
    ),
    "fonts-noto-core": (),
    "fonts-symbola": ("EMOJI",),
}
"""Debian packages by the scripts they serve; unlisted ones are in fonts-noto-core."""

FontEntry = Any
"""A font of matplotlib's list: `fname`, `name`, `style`, `weight`, and `index` since 3.11."""


GENERIC_FONTS = ("serif", "sans-serif", "monospace")
"""Families for which matplotlib, and a browser, have a font of their own."""


def check_font(name: str) -> str:
    """The name of an installed font family, in its own spelling; a UserError for another."""
    _add_new_fonts()
    known = {entry.name for entry in font_manager.fontManager.ttflist} | {*GENERIC_FONTS}
    spelled = {family.lower(): family for family in known}
    if name.lower() not in spelled:
        raise unknown_name("installed font", name, known)
    return spelled[name.lower()]


def use_installed_fonts(figure: Figure, font: str | None = None) -> str:
    """Set fallback fonts for every text of a figure; returns the characters that no font has.

    `font` is the family that is wanted first.
    """
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    letters = {letter for text in texts for letter in text.get_text()}
    first = (BASE_FONT,) if font is None else (check_font(font), BASE_FONT)
    for family in first:
        letters = missing_glyphs(family, letters)
    families, missing = fallback_fonts(frozenset(letters))
    if families:
        for text in texts:
            text.set_fontfamily([*first, *families])
    return missing


def warn_missing_glyphs(missing: str) -> None:
    """Warn once for each package with the characters that a PNG shows as boxes."""
    for package in PACKAGES:
        letters = "".join(letter for letter in missing if _package(letter) == package)
        if letters and package not in _warned:
            _warned.add(package)
            sample = letters if len(letters) <= 8 else f"{letters[:8]}…"
            warnings.warn(
                f"no installed font has the glyphs {sample}, so PNG figures show boxes; install "
                f"one (on Debian and Ubuntu: {package}). SVG figures use the viewer's fonts.",
                LmlabWarning,
                stacklevel=3,
            )


_warned: set[str] = set()


def _package(letter: str) -> str:
    """The Debian package whose fonts have a character."""
    script = unicodedata.name(letter, "UNNAMED").split()[0]
    script = "EMOJI" if ord(letter) >= 0x1F000 and script != "CJK" else script
    packages = (package for package, scripts in PACKAGES.items() if script in scripts)
    return next(packages, "fonts-noto-core")


@cache
def fallback_fonts(letters: frozenset[str]) -> tuple[tuple[str, ...], str]:
    """Families that together have the characters, largest coverage first, and those missing in all.

    Cost: on the first such character, opening every installed font.
    """
    families: list[str] = []
    missing = set(letters)
    while missing:
        best = max(_candidates(), key=lambda entry: len(missing) - len(_without(entry, missing)))
        still_missing = _without(best, missing)
        if len(still_missing) == len(missing):
            break
        families.append(best.name)
        missing = still_missing
    return tuple(families), "".join(sorted(missing))


def missing_glyphs(family: str, letters: Iterable[str]) -> set[str]:
    """Characters for which a family has no glyph."""
    font = _font_of(family)
    visible = {char for char in letters if unicodedata.category(char) not in INVISIBLE}
    # Variation selectors choose between forms of the preceding character.
    visible -= {chr(code) for code in range(0xFE00, 0xFE10)}
    return {letter for letter in visible if not font.get_char_index(ord(letter))}


@cache
def _font_of(family: str) -> FT2Font:
    return FT2Font(str(font_manager.findfont(font_manager.FontProperties(family=family))))


def _without(entry: FontEntry, letters: set[str]) -> set[str]:
    """The characters that a font lacks."""
    font = _open(entry)
    if font is None:
        return letters
    return {letter for letter in letters if not font.get_char_index(ord(letter))}


@cache
def _candidates() -> tuple[FontEntry, ...]:
    """Installed upright fonts of normal weight, the preferred ones first, then by name."""
    _add_new_fonts()
    entries = [
        entry
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and not entry.name.startswith(PLACEHOLDERS)
    ]
    return tuple(sorted(entries, key=_rank))


def _add_new_fonts() -> None:
    """Add fonts installed after matplotlib wrote its cached font list."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        try:
            font_manager.fontManager.addfont(path)
        except (OSError, RuntimeError, ValueError):
            continue  # a damaged font, or of a format that matplotlib does not read


def _rank(entry: FontEntry) -> tuple[int, bool, bool, str, str]:
    preference = (
        PREFERRED_FONTS.index(entry.name) if entry.name in PREFERRED_FONTS else len(PREFERRED_FONTS)
    )
    sans = "Sans" in entry.name or "Hei" in entry.name or "Gothic" in entry.name
    return (
        preference,
        entry.weight not in (400, "normal", "regular"),
        not sans,
        entry.name,
        entry.fname,
    )


def _open(entry: FontEntry) -> FT2Font | None:
    """The font, if it can be rendered: bitmap fonts (colour emoji) can't."""
    index = getattr(entry, "index", 0)
    face: dict[str, Any] = {"face_index": index} if index else {}
    try:
        font = FT2Font(entry.fname, **face)
    except (OSError, RuntimeError, ValueError):
        return None
    return font if font.scalable else None
