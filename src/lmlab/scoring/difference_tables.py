"""Tables of the differences between models: a list for a few models, a matrix for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmlab.scoring.comparison_records import NATS, Comparison, Difference
from lmlab.scoring.difference_matrix import LEVELS_LEGEND, DifferenceMatrix
from lmlab.scoring.multiple_comparisons import correction_clause


@dataclass(frozen=True, kw_only=True)
class DifferenceTable:
    """Cells as text, with their caption."""

    caption: str
    headings: Sequence[str]
    names: int
    """Columns of names, which come first; the others hold numbers."""
    rows: Sequence[Sequence[str]]

    @property
    def numbers(self) -> list[bool]:
        """Whether a column holds numbers."""
        return [index >= self.names for index in range(len(self.headings))]


def difference_tables(comparison: Comparison) -> Iterator[DifferenceTable]:
    """The list of differences, or their matrices where there are many models; none without any."""
    if not comparison.differences:
        return
    if not comparison.shows_matrices:
        yield _listed(comparison)
        return
    for matrix in comparison.matrices:
        yield _matrix(matrix, comparison)


def testing_clause(comparison: Comparison) -> str:
    """What the p-values are, and for how many tests they are corrected."""
    clause = correction_clause(comparison.correction, len(comparison.differences))
    return f"paired bootstrap over texts; {clause}"


def _listed(comparison: Comparison) -> DifferenceTable:
    return DifferenceTable(
        caption=f"Differences, {testing_clause(comparison)}",
        headings=("first", "second", "first - second", "95 % interval", "p"),
        names=2,
        rows=[
            (
                entry.first,
                entry.second,
                f"{entry.value:+.4f}{difference_unit(entry)}",
                f"{entry.low:+.4f} … {entry.high:+.4f}",
                f"{entry.p_corrected:.4f}",
            )
            for entry in comparison.differences
        ],
    )


def _matrix(matrix: DifferenceMatrix, comparison: Comparison) -> DifferenceTable:
    """Rows and columns in the order of the table; the columns are numbered as the rows are."""
    columns = [str(number) for number in range(1, len(matrix.names) + 1)]
    return DifferenceTable(
        caption=f"{matrix_caption(matrix, comparison)}; {testing_clause(comparison)}",
        headings=("", "model", *columns),
        names=2,
        rows=[
            (
                number,
                row,
                *("·" if row == other else matrix.cell(row, other) for other in matrix.names),
            )
            for number, row in zip(columns, matrix.names, strict=True)
        ],
    )


def matrix_caption(matrix: DifferenceMatrix, comparison: Comparison) -> str:
    """What a cell is, which sign is better, and what the marks mean."""
    higher = {
        metric.test.quantity
        for metric in comparison.metrics
        if metric.test is not None and metric.lower_is_better is False
    }
    better = "above" if matrix.quantity in higher else "below"
    return (
        f"Differences, row minus column in {unit_text(matrix)}: {better} zero the row is better; "
        f"{LEVELS_LEGEND}"
    )


def unit_text(matrix: DifferenceMatrix) -> str:
    """The quantity and what it is divided by, in words."""
    if matrix.quantity != NATS:
        return matrix.quantity.replace("_", " ")
    return f"nats per {matrix.unit}"


def difference_unit(difference: Difference) -> str:
    """The unit after a difference; nats per token have none."""
    if difference.quantity != NATS:
        return f" {difference.quantity.replace('_', ' ')}"
    return {"token": "", "character": " /char"}.get(difference.unit, f" /{difference.unit}")
