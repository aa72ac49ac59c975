"""HTML building blocks: all text is escaped."""

from __future__ import annotations

import math

from lmlab.plotting.html import Html, TableCell, html_page, html_table, join_html, number_cell, tag


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


def test_page_is_a_complete_document() -> None:
    html = html_page("a < b", tag("p", "text"))
    assert html.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in html
    assert '<meta name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
