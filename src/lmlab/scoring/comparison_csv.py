"""Model comparison as tidy CSV: one file with a line per model, one with a line per test."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmlab.core.errors import escape_csv_cell
from lmlab.scoring.comparison_records import Comparison, ComparisonRow
from lmlab.training.setting_records import format_value

FIRST_COLUMNS = ("corpus", "split", "model", "system", "kind", "tokenization", "runs", "seeds")
AMOUNTS = ("sequences", "tokens", "characters", "utf8_bytes", "unknown")
DIFFERENCE_COLUMNS = (
    *("corpus", "split", "first", "second", "quantity", "unit", "difference", "low", "high"),
    *("p_value", "p_corrected", "correction", "tests"),
)


def comparison_csv_files(comparison: Comparison, path: Path) -> dict[Path, str]:
    """The files of `--csv FILE` with their texts: the models, and the differences if any."""
    files = {path: models_csv(comparison)}
    if comparison.differences:
        files[differences_file(path)] = differences_csv(comparison)
    return files


def differences_file(path: str | Path) -> Path:
    """The file of the differences: NAME-differences.csv beside NAME.csv."""
    path = Path(path)
    return path.with_name(f"{path.stem}-differences{path.suffix}")


def models_csv(comparison: Comparison) -> str:
    """A line for each model, a column for each variable: settings that differ, metrics, spreads.

    Numbers are not rounded. A setting that is called as another column has `setting_` before it.
    """
    metrics = _metric_columns(comparison)
    taken = {*FIRST_COLUMNS, *AMOUNTS, *metrics}
    settings = [f"setting_{name}" if name in taken else name for name in comparison.differing]
    lines: list[list[Any]] = [[*FIRST_COLUMNS, *settings, *AMOUNTS, *metrics]]
    for row in comparison.rows:
        lines.append(
            [
                *(comparison.corpus, comparison.split, row.name, row.system, row.kind),
                *(row.tokenization, ";".join(row.runs), ";".join(map(str, row.seeds))),
                *(_setting(row, name) for name in comparison.differing),
                *(getattr(row, name) for name in AMOUNTS),
                *(row.values.get(name) for name in metrics),
            ]
        )
    return _csv(lines)


def differences_csv(comparison: Comparison) -> str:
    """A line for each tested difference, first - second, the better model first."""
    tests = len(comparison.differences)
    lines: list[list[Any]] = [list(DIFFERENCE_COLUMNS)]
    for entry in comparison.differences:
        lines.append(
            [
                *(comparison.corpus, comparison.split, entry.first, entry.second),
                *(entry.quantity, entry.unit, entry.value, entry.low, entry.high),
                *(entry.p_value, entry.p_corrected, comparison.correction, tests),
            ]
        )
    return _csv(lines)


def _metric_columns(comparison: Comparison) -> list[str]:
    """The metrics that any row has, each followed by its spread over seeds."""
    names = []
    for metric in comparison.metrics:
        names += [metric.name]
        names += [] if metric.spread is None else [metric.spread.name]
    return [
        name for name in names if any(row.values.get(name) is not None for row in comparison.rows)
    ]


def _setting(row: ComparisonRow, name: str) -> str:
    return format_value(row.settings[name]) if name in row.settings else ""


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for line in lines:
        writer.writerow([escape_csv_cell(c) if isinstance(c, str) else c for c in line])
    return buffer.getvalue()
