"""Parts of the HTML report that show metrics: table, differences, directions, explanations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lmlab.core.html import Html, TableCell, html_table, join_html, number_cell, tag
from lmlab.plotting.figure import colour
from lmlab.reports.report_sections import ReportSection
from lmlab.scoring.comparison_records import NATS, Comparison, ComparisonRow, Difference
from lmlab.scoring.comparison_tables import TableColumn, setting_columns, spread_text
from lmlab.scoring.difference_matrix import DifferenceMatrix
from lmlab.scoring.difference_tables import matrix_caption, testing_clause
from lmlab.scoring.metric import MISSING_CELL, Metric


@dataclass(frozen=True)
class _Column:
    """A table column: heading, and the cell of a row."""

    heading: str
    show: Callable[[ComparisonRow], TableCell]


def _columns(section: ReportSection) -> list[_Column]:
    """The columns that have a value in this comparison."""
    rows = section.comparison.rows
    columns = [
        _Column("model", lambda row: _name_cell(row, section)),
        *(
            _Column(column.heading, partial(_text_cell, column))
            for column in setting_columns(section.comparison.differing)
        ),
        _Column("kind", lambda row: TableCell(row.kind)),
    ]
    for metric in sorted(section.comparison.metrics, key=lambda m: m.report_column.order):
        column = metric.report_column
        if metric.is_shown(column, rows):
            columns.append(_Column(column.title, partial(_metric_cell, metric)))
    if len({row.convention.tokenizer for row in rows}) > 1:
        columns.append(_Column("tokenizer", lambda row: TableCell(row.convention.tokenizer)))
    return columns


def _text_cell(column: TableColumn, row: ComparisonRow) -> TableCell:
    return TableCell(column.show(row))


def comparison_table(section: ReportSection) -> Html:
    """The table of a section."""
    columns = _columns(section)
    cells = [[column.show(row) for column in columns] for row in section.comparison.rows]
    return html_table([column.heading for column in columns], cells)


def _name_cell(row: ComparisonRow, section: ReportSection) -> TableCell:
    seeds = f" ({len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
    name = row.name if row.system in row.name else f"{row.name} ({row.system})"
    return TableCell(join_html([swatch(section.colour_index(row.name)), name + seeds]))


def _metric_cell(metric: Metric, row: ComparisonRow) -> TableCell:
    value, column = row.values.get(metric.name), metric.report_column
    if column.format is None or value is None or not math.isfinite(value):
        cell = number_cell(value, column.digits)
    else:
        text = column.format(value)
        cell = TableCell(text, None if text == MISSING_CELL else value)
    return TableCell(cell.shown + spread_text(metric, column, row), cell.value)


def swatch(index: int) -> Html:
    """The colour of a row, as a small square."""
    return tag("span", class_="swatch", style=f"background:{colour(index)}")


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _unit(difference: Difference) -> str:
    """What nats are per, or the metric that is no nats."""
    return difference.unit if difference.quantity == NATS else difference.quantity


def differences_table(comparison: Comparison) -> Html:
    """The differences with their tests, under a heading; matrices where there are many models."""
    if not comparison.differences:
        return Html("")
    if comparison.shows_matrices:
        parts = [_matrix_table(matrix, comparison) for matrix in comparison.matrices]
        note = ""
    else:
        parts, note = [_listed_differences(comparison)], _sign_sentence(comparison)
    note += (
        f"Tests: {testing_clause(comparison)}. Both models of a pair are scored on the same "
        "resampled texts; intervals are not corrected."
    )
    return join_html([tag("h3", "Differences"), *parts, tag("p", note, class_="faint")])


def _sign_sentence(comparison: Comparison) -> str:
    higher = {
        metric.test.quantity
        for metric in comparison.metrics
        if metric.test is not None and metric.lower_is_better is False
    } & {difference.quantity for difference in comparison.differences}
    exceptions = f" (above zero for {', '.join(sorted(higher))})" if higher else ""
    return f"Below zero{exceptions} the first is better. "


def _listed_differences(comparison: Comparison) -> Html:
    rows = [
        [
            TableCell(difference.first),
            TableCell(difference.second),
            TableCell(_signed(difference.value), difference.value),
            TableCell(f"{_signed(difference.low)} … {_signed(difference.high)}", difference.low),
            number_cell(difference.p_corrected, 4),
            TableCell(_unit(difference)),
        ]
        for difference in comparison.differences
    ]
    header = ("model", "against", "difference", "95 % interval", "p", "nats per")
    return html_table(header, rows)


def _matrix_table(matrix: DifferenceMatrix, comparison: Comparison) -> Html:
    """Row minus column with the significance mark; columns are numbered as the rows are."""
    rows = [
        [
            TableCell(str(number), number),
            TableCell(row),
            *(_matrix_cell(matrix, row, column) for column in matrix.names),
        ]
        for number, row in enumerate(matrix.names, 1)
    ]
    header = ("", "model", *(str(number) for number in range(1, len(matrix.names) + 1)))
    text = f"{matrix_caption(matrix, comparison)}."
    return join_html([tag("p", text, class_="faint"), html_table(header, rows)])


def _matrix_cell(matrix: DifferenceMatrix, row: str, column: str) -> TableCell:
    if row == column:
        return TableCell("·")
    shown = matrix.cell(row, column).replace("-", "−")
    return TableCell(shown or MISSING_CELL, matrix.value(row, column))


def direction_sentence(sections: Sequence[ReportSection]) -> str:
    """Whether lower or higher figures are better."""
    titles = {
        metric.report_column.title
        for section in sections
        for metric in section.comparison.metrics
        if metric.lower_is_better is False
        and metric.is_shown(metric.report_column, section.comparison.rows)
    }
    exceptions = f"but for {', '.join(sorted(titles))}" if titles else "throughout"
    return f"Lower is better {exceptions}."


def metric_legend(sections: Sequence[ReportSection]) -> str:
    """Explanations of the metrics, the last columns first."""
    metrics = {
        metric.name: metric
        for section in sections
        for metric in section.comparison.metrics
        if metric.in_legend
    }
    ordered = sorted(metrics.values(), key=lambda metric: -metric.table.order)
    legend = "; ".join(metric.explanation for metric in ordered)
    return f"{legend[:1].upper()}{legend[1:]}."
