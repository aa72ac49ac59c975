"""Minimal pairs by several models: their accuracies in one record, differences tested."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import IO

import numpy as np

from lmlab.core.control_characters import csv_text
from lmlab.scoring.bootstrap import Interval, interval, paired_bootstrap
from lmlab.scoring.pairs import Accuracy, PairsReport

GROUPS = ("file", "phenomenon", "paradigm")
"""What accuracies are told by, beside all pairs together."""


@dataclass(frozen=True, kw_only=True)
class PairsDifference:
    """Accuracy of one model minus that of another on the same pairs, a tie counting one half."""

    first: str
    second: str
    interval: Interval
    """Paired bootstrap over the pairs, 95 %."""


@dataclass(frozen=True, kw_only=True)
class PairsComparison:
    """The reports of several models on the same minimal pairs, by the models' names."""

    reports: dict[str, PairsReport]
    differences: tuple[PairsDifference, ...]

    def as_dict(self) -> dict[str, object]:
        models = [{"model": name, **each.as_dict()} for name, each in self.reports.items()]
        return {"models": models, "differences": [asdict(each) for each in self.differences]}

    def write_csv(self, file: IO[str], *, raw: bool = False) -> None:
        """A row for each model and group: model, by, name, and the figures of `Accuracy`.

        Unless `raw`, names that a spreadsheet would take for a formula have an apostrophe before
        them, and control characters are written as escapes.
        """
        cell = str if raw else csv_text
        rows = [
            {"model": cell(model), "by": by, **accuracy.as_dict(), "name": cell(accuracy.name)}
            for model, report in self.reports.items()
            for by, accuracy in grouped(report)
        ]
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def grouped(report: PairsReport) -> Iterator[tuple[str, Accuracy]]:
    """The accuracy of all pairs, then by file, by phenomenon and by paradigm, each with its by."""
    yield "all", report.overall
    for by, some in zip(GROUPS, (report.files, report.phenomena, report.paradigms), strict=True):
        yield from ((by, each) for each in some)


def compare_pairs(reports: dict[str, PairsReport], *, seed: int = 0) -> PairsComparison:
    """Reports on the same pairs with the differences of every two models."""
    names = list(reports)
    credits = np.array([reports[name].credits for name in names], dtype=np.float64).T
    differences = []
    if len(names) > 1:
        ratios = paired_bootstrap(credits, np.ones_like(credits), seed=seed)
        for first, second in combinations(range(len(names)), 2):
            value = float(credits[:, first].mean() - credits[:, second].mean())
            found = interval(ratios, value, first, second)
            differences.append(
                PairsDifference(first=names[first], second=names[second], interval=found)
            )
    return PairsComparison(reports=reports, differences=tuple(differences))


def model_names(paths: Sequence[Path]) -> list[str]:
    """The names of the models' folders; whole paths where two are called alike."""
    names = [path.resolve().name for path in paths]  # "." has no name of its own
    return [
        name if names.count(name) == 1 else str(path)
        for name, path in zip(names, paths, strict=True)
    ]
