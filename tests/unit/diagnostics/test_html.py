"""HTML from small pieces: nothing gets in unescaped."""

from __future__ import annotations

import math

from lmlab.plotting.html import Html, TableCell, html_page, html_table, join_html, number_cell, tag


def test_plain_text_is_escaped_and_html_is_not() -> None:
    assert tag("p", "<b>&", Html("<i>x</i>")) == "<p>&lt;b&gt;&amp;<i>x</i></p>"


def test_attributes_are_escaped_and_named_as_in_html() -> None:
    found = tag("td", "x", class_="a", data_sort='"1"', title="<&>", id="")
    assert found == '<td class="a" data-sort="&quot;1&quot;" title="&lt;&amp;&gt;">x</td>'


def test_joined_pieces_keep_what_they_are() -> None:
    assert join_html(["<", Html("<br>")]) == "&lt;<br>"


def test_elements_without_content() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_numbers_and_what_they_sort_by() -> None:
    assert number_cell(1234.5678, 2) == TableCell("1,234.57", 1234.5678)
    assert number_cell(-0.5, 1) == TableCell("−0.5", -0.5)
    assert number_cell(None) == number_cell(math.nan) == TableCell("–")
    assert number_cell(math.inf) == TableCell("∞", math.inf)


def test_a_column_with_numbers_is_set_to_the_right() -> None:
    found = html_table(
        ["name", "loss"],
        [[TableCell("a<b"), number_cell(2.0)], [TableCell("c"), number_cell(None)]],
    )
    assert found.count('<td class="number"') == 2
    assert '<th class="number" scope="col">' in found
    assert 'data-sort="2.0"' in found
    assert "<td>a&lt;b</td>" in found


def test_a_page_is_whole() -> None:
    found = html_page("a < b", tag("p", "text"))
    assert found.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in found
    assert '<meta name="viewport"' in found
    assert "prefers-color-scheme: dark" in found
