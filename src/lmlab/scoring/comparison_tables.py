"""Model comparison tables: terminal, Markdown, LaTeX, JSON; only comparable rows are ranked.

Rows are ranked only where they are comparable: within one kind of score and one tokenisation. Where
there are several, each is a group with a heading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lmlab.core.errors import escape_control_characters
from lmlab.scoring.comparison_records import Comparison, ComparisonRow
from lmlab.scoring.difference_tables import difference_tables
from lmlab.scoring.metric import MISSING_CELL, Column, Metric
from lmlab.training.setting_records import format_value

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class TableColumn:
    """A table column: heading, cell text of a row, and whether it is numeric."""

    heading: str
    show: Callable[[ComparisonRow], str]
    number: bool = True


@dataclass(frozen=True)
class RowGroup:
    """Comparable rows, best first."""

    title: str
    rows: tuple[ComparisonRow, ...]


def _by_nats(row: ComparisonRow) -> float:
    """Sort key: best first, NaN last."""
    return math.inf if math.isnan(row.nats_per_token) else row.nats_per_token


def row_groups(comparison: Comparison) -> tuple[RowGroup, ...]:
    """The rows grouped by score kind and tokenisation; each group is sorted by nats per token."""
    groups: dict[tuple[str, str], list[ComparisonRow]] = {}
    for row in comparison.rows:
        groups.setdefault((row.kind, row.tokenization), []).append(row)
    return tuple(
        RowGroup(
            title=f"{kind}; {rows[0].convention.tokenizer}", rows=tuple(sorted(rows, key=_by_nats))
        )
        for (kind, _), rows in groups.items()
    )


def table_columns(comparison: Comparison) -> tuple[TableColumn, ...]:
    """The columns that have a value in this comparison."""
    rows = comparison.rows
    columns = [TableColumn("model", lambda row: row.name, number=False)]
    if any(row.system != row.name for row in rows):
        columns.append(TableColumn("system", lambda row: row.system, number=False))
    columns += setting_columns(comparison.differing)
    columns.append(TableColumn("kind", lambda row: row.kind, number=False))
    for metric in sorted(comparison.metrics, key=lambda metric: metric.table.order):
        if metric.is_shown(metric.table, rows):
            columns.append(TableColumn(metric.table.title, partial(metric_cell, metric)))
    return tuple(columns)


MOST_SETTING_COLUMNS = 5
"""Settings that differ have a column each up to this number; more are folded into one."""


def setting_columns(differing: Sequence[str]) -> list[TableColumn]:
    """A column for each setting that differs; one for all where they are many."""
    if len(differing) > MOST_SETTING_COLUMNS:
        return [TableColumn("differs", partial(_all_settings, differing), number=False)]
    return [TableColumn(name, partial(setting_cell, name), number=False) for name in differing]


def setting_cell(name: str, row: ComparisonRow) -> str:
    """The value of a setting in a row, a dash where its system has no such setting."""
    return format_value(row.settings[name]) if name in row.settings else MISSING_CELL


def _all_settings(differing: Sequence[str], row: ComparisonRow) -> str:
    return " ".join(
        f"{name}={setting_cell(name, row)}" for name in differing if name in row.settings
    )


def caption(comparison: Comparison) -> str:
    """Table caption: corpus, split, amount of text, conventions, and the entropy floor."""
    row = comparison.rows[0]
    end = "ends counted" if row.convention.end else "ends not counted"
    carried = ", state carried over lines" if row.convention.state_carried else ""
    cut = f", cut at {row.convention.max_length}" if row.convention.max_length else ""
    source = ", each given its source" if row.convention.source else ""
    amounts = {f"{compared.tokens:,} tokens" for compared in comparison.rows}
    amount = amounts.pop() if len(amounts) == 1 else f"{row.characters:,} characters"
    text = (
        f"{comparison.corpus}, {comparison.split} split: {row.sequences:,} "
        f"{'text' if row.sequences == 1 else 'texts'}, "
        f"{amount}, {end}{carried}{cut}{source}"
    )
    if comparison.floor is not None:
        text += f"; entropy of the language {comparison.floor.entropy:.3f} nats per text"
        if comparison.floor.entropy_per_token is not None:
            text += f", {comparison.floor.entropy_per_token:.4f} per token"
    return text + "."


def terminal_cell(text: str) -> str:
    """Escape a text for a terminal table: neither markup nor control characters."""
    from rich.markup import escape

    return escape(escape_control_characters(text))


def rich_table(comparison: Comparison) -> Table:
    """The table for a terminal."""
    from rich.table import Table

    table = Table(title=terminal_cell(caption(comparison)), title_justify="left", title_style="")
    columns = table_columns(comparison)
    for column in columns:
        table.add_column(
            column.heading, justify="right" if column.number else "left", no_wrap=column.number
        )
    groups = row_groups(comparison)
    for group in groups:
        if len(groups) > 1:
            table.add_row(f"[italic]{terminal_cell(group.title)}[/italic]")
        for row in group.rows:
            table.add_row(*(terminal_cell(column.show(row)) for column in columns))
        table.add_section()
    return table


def rich_differences(comparison: Comparison) -> list[Table]:
    """The differences for a terminal: a table, or matrices where there are many models."""
    from rich.table import Table

    tables = []
    for source in difference_tables(comparison):
        table = Table(title=terminal_cell(source.caption), title_justify="left", title_style="")
        for heading, number in zip(source.headings, source.numbers, strict=True):
            table.add_column(heading, justify="right" if number else "left", no_wrap=number)
        for row in source.rows:
            table.add_row(*map(terminal_cell, row))
        tables.append(table)
    return tables


def markdown(comparison: Comparison) -> str:
    """The table, differences and notes in Markdown."""
    columns = table_columns(comparison)
    lines = [markdown_escape(caption(comparison)), ""]
    groups = row_groups(comparison)
    for group in groups:
        if len(groups) > 1:
            lines += [f"**{markdown_escape(group.title)}**", ""]
        lines += markdown_rows(
            [column.heading for column in columns],
            [column.number for column in columns],
            ([column.show(row) for column in columns] for row in group.rows),
        )
        lines.append("")
    for table in difference_tables(comparison):
        lines += [markdown_escape(f"{table.caption}."), ""]
        lines += [*markdown_rows(table.headings, table.numbers, table.rows), ""]
    lines += [f"- {markdown_escape(note)}" for note in comparison.notes]
    return "\n".join(lines).rstrip() + "\n"


def latex(comparison: Comparison) -> str:
    """A LaTeX `table` with the package booktabs; notes go into the caption."""
    columns = table_columns(comparison)
    align = "".join("r" if column.number else "l" for column in columns)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \begin{{tabular}}{{{align}}}",
        r"    \toprule",
        "    " + " & ".join(latex_escape(column.heading) for column in columns) + r" \\",
    ]
    groups = row_groups(comparison)
    for group in groups:
        lines.append(r"    \midrule")
        if len(groups) > 1:
            title = latex_escape(group.title)
            lines.append(rf"    \multicolumn{{{len(columns)}}}{{l}}{{\emph{{{title}}}}} \\")
        for row in group.rows:
            cells = (latex_escape(column.show(row)) for column in columns)
            lines.append("    " + " & ".join(cells) + r" \\")
    words = " ".join((caption(comparison), *comparison.notes))
    return "\n".join(
        [
            *lines,
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{latex_escape(words)}}}",
            r"\end{table}",
            "",
        ]
    )


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """The comparison as JSON: non-finite numbers become null."""
    record = _finite(comparison.as_dict())
    assert isinstance(record, dict)
    return record


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def metric_cell(metric: Metric, row: ComparisonRow) -> str:
    """The text of a metric in a row, with its spread over seeds."""
    value, column = row.values.get(metric.name), metric.table
    if value is None or math.isnan(value):
        return MISSING_CELL
    if math.isinf(value):
        return "∞"
    text = f"{value:.{column.digits}f}" if column.format is None else column.format(value)
    return text + spread_text(metric, column, row)


def spread_text(metric: Metric, column: Column, row: ComparisonRow) -> str:
    """The spread over seeds that follows a value, where there is one."""
    spread = None if metric.spread is None else row.values.get(metric.spread.name)
    return "" if spread is None else f" ± {spread:.{column.digits}f}"


def markdown_rows(
    headings: Sequence[str], numbers: Sequence[bool], rows: Iterable[Sequence[str]]
) -> list[str]:
    """The lines of a Markdown table; numeric columns are right-aligned."""
    rule = ["---:" if number else "---" for number in numbers]
    lines = [headings, rule, *([markdown_escape(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def markdown_escape(text: str) -> str:
    """Escape a text for Markdown."""
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\ldots{}",
    "∞": r"$\infty$",
}


def latex_escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)
