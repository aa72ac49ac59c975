"""Records in notebooks: HTML, tables, one-line errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from lmlab.core.errors import UserError
from lmlab.core.html import Html
from lmlab.core.notebook import MAX_ITEMS, MAX_ROWS, NotebookRecord, Records, scalar_fields


@dataclass(frozen=True)
class Plain:
    name: str
    value: float
    nested: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Numbered(NotebookRecord):
    number_column: ClassVar[str] = "line"
    words: tuple[str, ...]
    line: int | None = None

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        return [{"line": self.line, "word": word} for word in self.words]

    def html_body(self) -> Html:
        return Html(f"<p>{len(self.words)}</p>")

    def html_notes(self) -> Sequence[str]:
        return ["a < b"]


def test_fields_that_fit_a_cell() -> None:
    assert scalar_fields(Plain("a", 0.5)) == {"name": "a", "value": 0.5}
    assert scalar_fields("text") == {"value": "text"}


def test_list_of_plain_records_is_a_table() -> None:
    html = Records([Plain("<a>", 0.5), Plain("b", -1.0)]).to_html()
    assert "<td>&lt;a&gt;</td>" in html and '<td class="number">−1</td>' in html
    many = Records(Plain(str(n), 0.5) for n in range(MAX_ROWS + 7))
    assert "… and 7 more" in many.to_html()
    assert many == list(many) and repr(many[:1]) == repr([many[0]])
    assert isinstance(many[:1], Records)


def test_list_of_records_shows_each_and_its_notes_once() -> None:
    records = Records([Numbered(("a", "b")), Numbered(("c",), line=9)])
    assert [*records.table_rows()] == [
        {"line": 1, "word": "a"},
        {"line": 1, "word": "b"},
        {"line": 9, "word": "c"},
    ]
    html = records.to_html()
    assert "<p>2</p><p>1</p>" in html
    assert html.count("a &lt; b") == 1
    assert records._repr_html_() == html
    assert "… and 2 more" in Records([Numbered(())] * (MAX_ITEMS + 2)).to_html()


def test_missing_pandas_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for record in (Numbered(("a",)), Records([Plain("a", 1.0)])):
        with pytest.raises(UserError, match=r"^to_pandas needs pandas; pip install 'lmlab\[tabl"):
            record.to_pandas()


def test_ipython_shows_an_error_as_one_sentence() -> None:
    assert UserError("width must be positive\x1b[2J.")._render_traceback_() == [
        "lmlab: width must be positive\\x1b[2J."
    ]
