"""A sentence with its entities below: where bars and names stand."""

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
    found = re.findall(r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) \2 \n" [^>]*stroke-width: 4', svg)
    return [(float(left), float(right), float(top)) for left, top, right in found]


def words(svg: str) -> dict[str, float]:
    """The left end of each text, in points."""
    return {text: float(x) for x, text in re.findall(r'<text [^>]*x="([\d.]+)"[^>]*>([^<]*)<', svg)}


def test_a_bar_stands_under_its_words_and_names_do_not_run_into_each_other():
    text = "will bank on it"
    svg = entity_links_svg(
        LinkedText(text=text, mentions=(mention(0, 4, "a long title"), mention(5, 12, "rely")))
    )
    first, second = bars(svg)
    where = words(svg)
    assert {"will", "bank", "on", "it"} <= set(where)  # words are whole
    assert first[0] == pytest.approx(where["will"], abs=0.1)
    assert second[0] == pytest.approx(where["bank"], abs=0.1)
    assert where["on"] < second[1] < where["it"]
    assert second[2] > first[2]  # the first name is longer than its word, so the next stands lower


def test_letters_stand_one_after_another_and_narrow_ones_take_less_room():
    places = letter_positions("il mw")
    widths = [b - a for a, b in pairwise(places)]
    assert all(width > 0 for width in widths)
    assert max(widths[:2]) < min(widths[3:])


def test_chinese_letters_are_as_wide_as_high_and_make_no_warning(recwarn):
    """11 points each, whatever fonts are installed; a bar ends where its letters do."""
    places = letter_positions("莫斯科 cat")
    widths = [72 * (b - a) for a, b in pairwise(places)]
    assert widths[:3] == pytest.approx([11] * 3)
    assert widths[4:] == pytest.approx([72 * w for w in _widths("cat")])
    svg = entity_links_svg(LinkedText(text="莫斯科的", mentions=(mention(0, 3, "莫斯科"),)))
    [(left, right, _)] = bars(svg)
    assert right - left == pytest.approx(33, abs=0.1)
    assert not recwarn.list


def _widths(text: str) -> list[float]:
    return [b - a for a, b in pairwise(letter_positions(text))]
