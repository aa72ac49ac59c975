"""Self-contained HTML pages."""

from __future__ import annotations

from lmlab.core.html import tag
from lmlab.plotting.html import html_page


def test_page_is_a_complete_document() -> None:
    html = html_page("a < b", tag("p", "text"))
    assert html.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in html
    assert '<meta name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
