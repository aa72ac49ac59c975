"""Entity link figure: positions of mention bars and entity titles."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from lmlab.inspection.entity_links import entity_links_svg, letter_positions
from lmlab.scoring.entity_linking import LinkedMention, LinkedText


def mention(start: int, end: int, title: str) -> LinkedMention:
    return LinkedMention(
        start=start, end=end, words="", entity=title, title=title, description="", probability=0.5
    )


def bars(svg: str) -> list[tuple[float, float, float]]:
    """Left, right and height of each bar, in points."""
    matches = re.findall(r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) \2 \n" [^>]*stroke-width: 4', svg)
    return [(float(left), float(right), float(top)) for left, top, right in matches]


def text_positions(svg: str) -> dict[str, float]:
    """The left end of each text, in points."""
    return {
        text: float(x_position)
        for x_position, text in re.findall(r'<text [^>]*x="([\d.]+)"[^>]*>([^<]*)<', svg)
    }


def test_mention_bars_align_with_words_and_titles_do_not_overlap():
    text = "will bank on it"
    svg = entity_links_svg(
        LinkedText(text=text, mentions=(mention(0, 4, "a long title"), mention(5, 12, "rely")))
    )
    first, second = bars(svg)
    x_of = text_positions(svg)
    assert {"will", "bank", "on", "it"} <= set(x_of)  # words are not split
    assert first[0] == pytest.approx(x_of["will"], abs=0.1)
    assert second[0] == pytest.approx(x_of["bank"], abs=0.1)
    assert x_of["on"] < second[1] < x_of["it"]
    assert (
        second[2] > first[2]
    )  # the first name is longer than its word, so the next is placed lower


def test_letter_positions_increase_by_glyph_width():
    edges = letter_positions("il mw")
    widths = [b - a for a, b in pairwise(edges)]
    assert all(width > 0 for width in widths)
    assert max(widths[:2]) < min(widths[3:])


def test_chinese_characters_are_full_width_without_warnings(recwarn):
    """11 points each, whatever fonts are installed; a bar ends where its letters do."""
    edges = letter_positions("莫斯科 cat")
    widths = [72 * (b - a) for a, b in pairwise(edges)]
    assert widths[:3] == pytest.approx([11] * 3)
    assert widths[4:] == pytest.approx([72 * w for w in letter_widths("cat")])
    svg = entity_links_svg(LinkedText(text="莫斯科的", mentions=(mention(0, 3, "莫斯科"),)))
    [(left, right, _)] = bars(svg)
    assert right - left == pytest.approx(33, abs=0.1)
    assert not recwarn.list


def letter_widths(text: str) -> list[float]:
    return [b - a for a, b in pairwise(letter_positions(text))]
