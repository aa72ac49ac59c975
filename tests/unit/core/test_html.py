"""HTML building blocks: all text is escaped."""

from __future__ import annotations

import math
import re

from lmlab.core.html import (
    Html,
    TableCell,
    cell_text,
    html_table,
    inline_svg,
    join_html,
    number_cell,
    plain_table,
    tag,
)


def test_plain_text_is_escaped_and_html_is_not() -> None:
    assert tag("p", "<b>&", Html("<i>x</i>")) == "<p>&lt;b&gt;&amp;<i>x</i></p>"


def test_attributes_are_escaped_and_renamed_for_html() -> None:
    html = tag("td", "x", class_="a", data_sort='"1"', title="<&>", id="")
    assert html == '<td class="a" data-sort="&quot;1&quot;" title="&lt;&amp;&gt;">x</td>'


def test_join_escapes_text_and_keeps_html() -> None:
    assert join_html(["<", Html("<br>")]) == "&lt;<br>"


def test_void_elements_have_no_closing_tag() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_number_cells_and_their_sort_values() -> None:
    assert number_cell(1234.5678, 2) == TableCell("1,234.57", 1234.5678)
    assert number_cell(-0.5, 1) == TableCell("−0.5", -0.5)
    assert number_cell(None) == number_cell(math.nan) == TableCell("–")
    assert number_cell(math.inf) == TableCell("∞", math.inf)


def test_numeric_columns_are_right_aligned() -> None:
    html = html_table(
        ["name", "loss"],
        [[TableCell("a<b"), number_cell(2.0)], [TableCell("c"), number_cell(None)]],
    )
    assert html.count('<td class="number"') == 2
    assert '<th class="number" scope="col">' in html
    assert 'data-sort="2.0"' in html
    assert "<td>a&lt;b</td>" in html


def test_plain_table_escapes_cells_and_shows_hidden_characters() -> None:
    html = plain_table(["a<", "n"], [["<b>\u202e", "1"]], numbers=(False, True), bold=(True,))
    assert '<th scope="col">a&lt;</th>' in html
    assert "<td>&lt;b&gt;\\u202e</td>" in html
    assert '<td class="number">1</td>' in html
    assert html.count('<tr class="bold">') == 1


def test_values_as_short_texts() -> None:
    values = (None, True, 3, -0.123456, ("a", 1.0), "x")
    assert [*map(cell_text, values)] == ["–", "yes", "3", "−0.1235", "a, 1", "x"]


def test_ids_of_figures_on_one_page_do_not_collide() -> None:
    first, second = (
        inline_svg(f'<svg><g id="p1" clip-path="url(#p1)"/><use href="#p1"/>{text}</svg>')
        for text in ("a", "b")
    )
    names = {re.findall(r'id="([^"]+)"', svg)[0] for svg in (first, second)}
    assert len(names) == 2
    for svg in (first, second):
        [name] = re.findall(r'id="([^"]+)"', svg)
        assert svg.count(name) == 3
