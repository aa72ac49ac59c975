"""Tables on a terminal: framed if they fit, narrower if they do not, and never truncated."""

from __future__ import annotations

import re

import pytest
from rich.table import Table

from lmlab.cli.output import show_table


class Terminal:
    """Standard output of a terminal, kept."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "framed", "width"),
    [(60, True, 51), (50, False, 47), (46, False, 43), (42, False, 39), (30, False, 39)],
)
def test_table_is_as_wide_as_it_must_be(
    monkeypatch: pytest.MonkeyPatch, columns: int, framed: bool, width: int
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    table = Table()
    for name in range(5):
        table.add_column(f"name{name:03}")
    table.add_row(*["1234567"] * 5)
    show_table(table)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text).splitlines()
    assert max(map(len, lines)) == width
    assert ("┃" in terminal.text) is framed
    assert lines[-1 - framed].count("1234567") == 5
