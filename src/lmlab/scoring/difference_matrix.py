"""Pairwise differences of many models as a matrix: value and corrected p-value of each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmlab.scoring.comparison_records import Difference

MOST_LISTED = 5
"""Models whose differences are listed; those of more are shown as a matrix."""
LEVELS = ((0.01, "**"), (0.05, "*"))
"""Resampling tells no smaller p-values apart: see `enough_resamples`."""
LEVELS_LEGEND = "* p < 0.05, ** p < 0.01"


def significance_mark(p_value: float) -> str:
    """An asterisk for p below 0.05, two for p below 0.01."""
    return next((mark for level, mark in LEVELS if p_value < level), "")


@dataclass(frozen=True, kw_only=True)
class DifferenceMatrix:
    """The tested differences of one quantity between all models, row minus column."""

    names: tuple[str, ...]
    """Models in the order of the table."""
    quantity: str
    unit: str
    entries: Mapping[tuple[str, str], Difference]
    """By first and second model, each pair once."""

    def value(self, row: str, column: str) -> float | None:
        """Row minus column; None where it is not tested."""
        entry = self.difference(row, column)
        if entry is None:
            return None
        return entry.value if entry.first == row else -entry.value

    def difference(self, row: str, column: str) -> Difference | None:
        """The difference of two models, whichever is the first; None where it is not tested."""
        return self.entries.get((row, column)) or self.entries.get((column, row))

    def cell(self, row: str, column: str, digits: int = 4) -> str:
        """Sign, size and significance mark; empty where there is no test."""
        entry, value = self.difference(row, column), self.value(row, column)
        if entry is None or value is None:
            return ""
        return f"{value:+.{digits}f}{significance_mark(entry.p_corrected)}"

    def as_dict(self) -> dict[str, object]:
        """A JSON-serialisable dict: lists by row and column, None where there is no test."""
        values, p_values = [], []
        for row in self.names:
            values.append([self.value(row, column) for column in self.names])
            tested = [self.difference(row, column) for column in self.names]
            p_values.append([None if entry is None else entry.p_corrected for entry in tested])
        return {
            "names": list(self.names),
            "quantity": self.quantity,
            "unit": self.unit,
            "row_minus_column": values,
            "p_corrected": p_values,
        }


def difference_matrices(
    names: Sequence[str], differences: Sequence[Difference]
) -> tuple[DifferenceMatrix, ...]:
    """A matrix for each quantity and unit, of the models that were tested in it."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Difference]] = {}
    for entry in differences:
        group = groups.setdefault((entry.quantity, entry.unit), {})
        group[entry.first, entry.second] = entry
    matrices = []
    for (quantity, unit), entries in groups.items():
        tested = {name for pair in entries for name in pair}
        ordered = tuple(name for name in names if name in tested)
        matrices.append(
            DifferenceMatrix(names=ordered, quantity=quantity, unit=unit, entries=entries)
        )
    return tuple(matrices)
