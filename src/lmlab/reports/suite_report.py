"""HTML report of benchmark suites: averages with intervals, phenomena × models, all groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.html import Html, TableCell, html_table, number_cell, tag
from lmlab.plotting.figure import FigureSpec
from lmlab.reports.comparison_files import checked_file, write_with_folder
from lmlab.scoring.suite_records import Benchmark, GroupResult, SuiteResult

HEADER = ("model", "suite", "group", "n", "value", "low", "high", "ties to first", "ties")
UNKNOWN = "with unknown"


def checked_report_file(path: Path) -> Path:
    """The path of a report; a UserError unless it is a file that ends in .html."""
    if path.suffix.lower() != ".html":
        raise UserError(f"the report file must end in .html, got {path.name}.")
    return checked_file(path)


def write_suite_report(path: Path, benchmark: Benchmark) -> None:
    """Write the report atomically."""
    write_with_folder(path, render_suite_report(benchmark))


def render_suite_report(benchmark: Benchmark) -> str:
    """The page of a benchmark."""
    from lmlab.plotting.html import html_page
    from lmlab.plotting.notebook_figures import notebook_figure

    sections = [tag("h1", benchmark.title), tag("h2", "Averages"), _table(benchmark, "average")]
    if benchmark.differences:
        sections += [tag("h2", "Differences"), _differences(benchmark)]
    figure = phenomena_figure(benchmark)
    if figure is not None:
        sections += [tag("h2", "Phenomena"), notebook_figure(figure)]
    sections += [_table(benchmark, "phenomenon"), tag("h2", "Paradigms")]
    sections += [_table(benchmark, "paradigm"), tag("h2", "How to read this")]
    lines = [*benchmark.notes(), *benchmark.conventions(), *benchmark.sources]
    sections.append(tag("ul", *(tag("li", line) for line in lines)))
    return html_page(benchmark.title, *sections)


def phenomena_figure(benchmark: Benchmark) -> FigureSpec | None:
    """Heat map of the accuracy of each model on each phenomenon; None without accuracies."""
    from lmlab.core.capture import UNIT_INTERVAL
    from lmlab.plotting.charts import HeatMap, HeatMapAxis, draw_heat_maps, heat_maps_size

    accuracies = [result for result in benchmark.results if result.measure == "accuracy"]
    if not accuracies:
        return None
    models = benchmark.models
    values: dict[tuple[str, str], list[float]] = {}
    for result in accuracies:
        for group in result.level("phenomenon"):
            row = values.setdefault((result.suite, group.name), [np.nan] * len(models))
            row[models.index(result.model)] = group.value
    several = len({suite for suite, _ in values}) > 1
    labels = (f"{suite}: {name}" if several else name for suite, name in values)
    grid = HeatMap(
        values=np.array([*values.values()]),
        rows=HeatMapAxis(name="phenomenon", labels=tuple(labels), max_label_length=46),
        columns=HeatMapAxis(name="model", labels=tuple(models), max_label_length=24),
        cell=0.36,
        bounds=UNIT_INTERVAL,
    )
    width, height = heat_maps_size([grid])
    return FigureSpec(
        name="phenomena",
        title="accuracy by phenomenon",
        caption="Accuracy of each model on each phenomenon. Chance depends on the suite: 0.5 for "
        "pairs.",
        draw=partial(draw_heat_maps, grids=[grid], title="accuracy by phenomenon"),
        width=width,
        height=height,
    )


def _table(benchmark: Benchmark, by: str) -> Html:
    rows = [_row(result, group) for result in benchmark.results for group in result.level(by)]
    return html_table((*HEADER, UNKNOWN), rows)


def _row(result: SuiteResult, group: GroupResult) -> list[TableCell]:
    counts = (group.ties, group.with_unknown)
    return [
        TableCell(result.model),
        TableCell(result.suite),
        TableCell(group.name if group.by != "average" else result.measure),
        number_cell(group.n, 0),
        *map(number_cell, (group.value, group.low, group.high, group.ties_to_first)),
        *(number_cell(count, 0) for count in counts),
    ]


def _differences(benchmark: Benchmark) -> Html:
    rows = [
        [
            TableCell(difference.suite),
            TableCell(f"{difference.first} - {difference.second}"),
            *map(number_cell, (interval.value, interval.low, interval.high)),
            number_cell(interval.p_value, 4),
        ]
        for difference in benchmark.differences
        for interval in (difference.interval,)
    ]
    return html_table(("suite", "difference", "value", "low", "high", "p"), rows)
