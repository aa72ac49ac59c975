"""A table of results for a terminal, in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmlab.core.errors import escape_csv_cell
from lmlab.core.html import Html, join_html, plain_table, tag, visible_text
from lmlab.scoring.comparison_tables import (
    latex_escape,
    markdown_escape,
    markdown_rows,
    terminal_cell,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Cells as text, with what surrounds them."""

    caption: str
    headings: Sequence[str]
    numbers: Sequence[bool]
    """Whether a column holds numbers, which are set right."""
    rows: Sequence[Sequence[str]]
    bold: Sequence[bool]
    """Rows that a terminal sets bold."""
    notes: Sequence[str] = ()

    def html(self) -> Html:
        """The table under its caption for a notebook, without the notes."""
        table = plain_table(self.headings, self.rows, numbers=self.numbers, bold=self.bold)
        return join_html([tag("div", visible_text(self.caption), class_="faint"), table])

    def rich(self, *, most: int | None = None) -> Table:
        """The table for a terminal, with `most` rows at most."""
        from rich.table import Table

        table = Table(title=terminal_cell(self.caption), title_justify="left", title_style="")
        for heading, number in zip(self.headings, self.numbers, strict=True):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number)
        for row, bold in list(zip(self.rows, self.bold, strict=True))[:most]:
            table.add_row(*map(terminal_cell, row), style="bold" if bold else None)
        return table

    def markdown(self) -> str:
        """The table and its notes in Markdown."""
        table = markdown_rows(list(self.headings), list(self.numbers), self.rows)
        notes = [f"- {markdown_escape(note)}" for note in self.notes]
        below = ["", *notes] if notes else []
        return "\n".join([markdown_escape(self.caption), "", *table, *below]) + "\n"

    def latex(self) -> str:
        """A LaTeX `table` with the package booktabs."""
        align = "".join("r" if number else "l" for number in self.numbers)
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \begin{{tabular}}{{{align}}}",
            r"    \toprule",
            "    " + " & ".join(map(latex_escape, self.headings)) + r" \\",
            r"    \midrule",
            *(f"    {' & '.join(map(latex_escape, row))} \\\\" for row in self.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{latex_escape(self.caption)}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The cells as CSV."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.headings)
        writer.writerows([escape_csv_cell(cell) for cell in row] for row in self.rows)
        return buffer.getvalue()
