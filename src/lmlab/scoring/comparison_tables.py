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
from lmlab.scoring.comparison_records import NATS, Comparison, ComparisonRow, Difference
from lmlab.scoring.metric import MISSING_CELL, Column, Metric

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
    columns.append(TableColumn("kind", lambda row: row.kind, number=False))
    for metric in sorted(comparison.metrics, key=lambda metric: metric.table.order):
        if metric.is_shown(metric.table, rows):
            columns.append(TableColumn(metric.table.title, partial(metric_cell, metric)))
    return tuple(columns)


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


def rich_differences(comparison: Comparison) -> Table:
    """The differences for a terminal."""
    from rich.table import Table

    table = Table(title="Differences, paired bootstrap over texts", title_justify="left")
    for heading in ("first", "second"):
        table.add_column(heading)
    for heading in ("first - second", "95 % interval", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for difference in comparison.differences:
        table.add_row(
            terminal_cell(difference.first),
            terminal_cell(difference.second),
            *difference_cells(difference),
        )
    return table


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
    if comparison.differences:
        headings = ["first", "second", "first - second", "95 % interval", "p"]
        cells = ([e.first, e.second, *difference_cells(e)] for e in comparison.differences)
        lines += [*markdown_rows(headings, [False, False, True, True, True], cells), ""]
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


def difference_cells(difference: Difference) -> tuple[str, str, str]:
    """The difference with its unit, the interval and the p-value."""
    value = f"{difference.value:+.4f}{difference_unit(difference)}"
    return value, f"{difference.low:+.4f} … {difference.high:+.4f}", f"{difference.p_value:.4f}"


def difference_unit(difference: Difference) -> str:
    """The unit after a difference; nats per token have none."""
    if difference.quantity != NATS:
        return f" {difference.quantity.replace('_', ' ')}"
    return {"token": "", "character": " /char"}.get(difference.unit, f" /{difference.unit}")


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
