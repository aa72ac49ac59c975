"""Minimal pairs (BLiMP): accuracy by phenomenon, of one model or several with their differences.

Warstadt et al. 2020, BLiMP: The Benchmark of Linguistic Minimal Pairs for English. Any scoring
model can be evaluated, also an unnormalised one: its constant cancels within a pair where it is the
same for both sentences.
"""

from __future__ import annotations

import csv
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import IO, Any

import numpy as np

from lmlab.core.errors import UserError, escape_csv_cell
from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord, rows_html
from lmlab.core.score import Convention, Score, ScoreKind
from lmlab.core.score_html import score_notes
from lmlab.scoring.bootstrap import DifferenceInterval, interval, paired_bootstrap
from lmlab.scoring.json_rows import JsonRow, files_of, json_rows
from lmlab.scoring.scorer import Scorer

UNLABELLED = "(no phenomenon)"
TIE = 1e-5
"""Tolerance in nats below which scores are a tie: batching changes scores by about as much."""


@dataclass(frozen=True, kw_only=True)
class MinimalPair:
    """Minimal pair: an acceptable and an unacceptable sentence, with phenomenon and paradigm."""

    good: str
    bad: str
    phenomenon: str = UNLABELLED
    uid: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class PairAccuracy:
    """Minimal-pair accuracy: how often the good sentence is more probable."""

    name: str
    pairs: int
    right: int
    """Pairs whose good sentence has the higher log-probability; a tie counts as wrong."""
    right_per_token: int
    """The same by log-probability per token, which does not favour the shorter sentence."""
    ties: int
    """Pairs of equal log-probability, as where unknown tokens replace the difference."""
    with_unknown: int
    """Pairs with an unknown token in either sentence, on which less can be expected."""

    @property
    def accuracy(self) -> float:
        return self.right / max(self.pairs, 1)

    @property
    def accuracy_per_token(self) -> float:
        return self.right_per_token / max(self.pairs, 1)

    @property
    def accuracy_ties_half(self) -> float:
        """Accuracy with ties counted one half, so that an indifferent model has 0.5."""
        return (self.right + self.ties / 2) / max(self.pairs, 1)

    @property
    def standard_error(self) -> float:
        """Binomial: √(a (1 - a) / n)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / max(self.pairs, 1))

    def as_dict(self) -> dict[str, object]:
        derived = {
            "accuracy": self.accuracy,
            "accuracy_ties_half": self.accuracy_ties_half,
            "accuracy_per_token": self.accuracy_per_token,
            "standard_error": self.standard_error,
        }
        return asdict(self) | derived


@dataclass(frozen=True, kw_only=True)
class MinimalPairsReport(NotebookRecord):
    """Accuracy over all pairs, by file, by phenomenon and by paradigm (UID)."""

    overall: PairAccuracy
    files: tuple[PairAccuracy, ...]
    phenomena: tuple[PairAccuracy, ...]
    paradigms: tuple[PairAccuracy, ...]
    kind: ScoreKind
    convention: Convention
    credits: tuple[float, ...] = ()
    """Per pair in order: 1 right, 0.5 a tie, 0 wrong."""

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each group of pairs."""
        return [
            {"by": by, "name": accuracy.name, **accuracy.as_dict()}
            for by, accuracy in accuracies_by_group(self)
        ]

    def html_body(self) -> Html:
        """The accuracies before the counts."""
        return rows_html([_accuracies_first(row) for row in self.table_rows()])

    def html_notes(self) -> Sequence[str]:
        """What the score means, and the convention."""
        return score_notes(self.kind, self.convention)

    def as_dict(self) -> dict[str, object]:
        return {
            "overall": self.overall.as_dict(),
            "files": [accuracy.as_dict() for accuracy in self.files],
            "phenomena": [accuracy.as_dict() for accuracy in self.phenomena],
            "paradigms": [accuracy.as_dict() for accuracy in self.paradigms],
            "kind": self.kind,
            "convention": self.convention.as_dict(),
            "ties": "counted as wrong in accuracy, as one half in accuracy_ties_half",
        }


def read_minimal_pairs(paths: Iterable[Path | str]) -> Iterator[MinimalPair]:
    """Read minimal pairs from JSON-lines files in BLiMP's format, lazily; skips empty lines.

    A folder stands for all its .jsonl files, sorted by name.

    Each row needs `sentence_good` and `sentence_bad`; `linguistics_term` or `phenomenon`, and
    `UID`, group them. An invalid row is an error that names its file and line.
    """
    for given_path in map(Path, paths):
        for path in files_of(given_path, ".jsonl", "minimal pairs"):
            yield from map(_minimal_pair, json_rows(path, "pair"))


def _minimal_pair(row: JsonRow) -> MinimalPair:
    values = row.values
    return MinimalPair(
        good=row.text("sentence_good", "sentence"),
        bad=row.text("sentence_bad", "sentence"),
        phenomenon=str(values.get("linguistics_term") or values.get("phenomenon") or UNLABELLED),
        uid=str(values.get("UID") or ""),
        file=str(row.file),
        line=row.line,
    )


def score_minimal_pairs(scorer: Scorer, pairs: Iterable[MinimalPair]) -> MinimalPairsReport:
    """Score both sentences of every pair independently, and count; memory is bounded."""
    waiting: deque[MinimalPair] = deque()

    def texts() -> Iterator[str]:
        for pair in pairs:
            waiting.append(pair)
            yield pair.good
            yield pair.bad

    groups: dict[str, dict[str, _Count]] = {"": {}, "file": {}, "phenomenon": {}, "uid": {}}
    credits: list[float] = []
    scores = scorer.with_method().score(texts(), per_token=False)
    first: Score | None = None
    for good in scores:
        bad = next(scores)
        pair = waiting.popleft()
        first = first or good
        credits.append(_credit(good, bad))
        for grouping, counts in groups.items():
            name = str(getattr(pair, grouping)) if grouping else "all"
            counts.setdefault(name, _Count()).add(good, bad)
    if first is None:
        raise UserError("there are no pairs to evaluate.")
    files, phenomena, paradigms = (_accuracies(groups[by]) for by in ("file", "phenomenon", "uid"))
    return MinimalPairsReport(
        overall=_accuracies(groups[""])[0],
        files=files,
        phenomena=phenomena,
        paradigms=tuple(paradigm for paradigm in paradigms if paradigm.name),
        kind=first.kind,
        convention=first.convention,
        credits=tuple(credits),
    )


def score_minimal_pair_files(scorer: Scorer, paths: Sequence[Path | str]) -> MinimalPairsReport:
    """The accuracy of a system on files of minimal pairs."""
    return score_minimal_pairs(scorer, read_minimal_pairs(paths))


class _Count:
    """Counts of one group of pairs."""

    def __init__(self) -> None:
        self.pairs = self.right = self.right_per_token = self.ties = self.with_unknown = 0

    def add(self, good: Score, bad: Score) -> None:
        credit = _credit(good, bad)
        self.pairs += 1
        self.right += credit == 1
        self.right_per_token += good.total / good.tokens - bad.total / bad.tokens > TIE
        self.ties += credit == 0.5
        self.with_unknown += good.unknown + bad.unknown > 0


def _credit(good: Score, bad: Score) -> float:
    """1 if the good sentence is more probable, 0.5 for a tie, 0 otherwise."""
    if good.total == bad.total or abs(good.total - bad.total) <= TIE:
        return 0.5
    return float(good.total > bad.total)


def _accuracies(counts: dict[str, _Count]) -> tuple[PairAccuracy, ...]:
    return tuple(PairAccuracy(name=name, **vars(counts[name])) for name in sorted(counts))


PAIR_GROUPS = ("file", "phenomenon", "paradigm")
"""Groupings by which accuracies are reported, besides the overall one."""


@dataclass(frozen=True, kw_only=True)
class MinimalPairsDifference:
    """Accuracy difference of two models on the same pairs, with ties counted one half."""

    first: str
    second: str
    interval: DifferenceInterval
    """Paired bootstrap over the pairs, 95 %."""


@dataclass(frozen=True, kw_only=True)
class MinimalPairsComparison(NotebookRecord):
    """Minimal-pair reports of several models on the same pairs, by model name."""

    reports: dict[str, MinimalPairsReport]
    differences: tuple[MinimalPairsDifference, ...]

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each model and group of pairs."""
        return [
            {"model": model, **row}
            for model, report in self.reports.items()
            for row in report.table_rows()
        ]

    def html_body(self) -> Html:
        """The accuracies before the counts."""
        return rows_html([_accuracies_first(row) for row in self.table_rows()])

    def html_notes(self) -> Sequence[str]:
        """What the scores mean, and the conventions; differences of the models."""
        notes = [note for report in self.reports.values() for note in report.html_notes()]
        notes += [
            f"{each.first} - {each.second}: {each.interval.value:+.4f} (95 % interval "
            f"{each.interval.low:+.4f} to {each.interval.high:+.4f}), ties counted one half."
            for each in self.differences
        ]
        return list(dict.fromkeys(notes))

    def as_dict(self) -> dict[str, object]:
        models = [{"model": name, **report.as_dict()} for name, report in self.reports.items()]
        return {"models": models, "differences": [asdict(report) for report in self.differences]}

    def write_csv(self, file: IO[str], *, raw: bool = False) -> None:
        """Write a CSV row per model and group: model, by, name, and the fields of `PairAccuracy`.

        Unless `raw`, names that a spreadsheet would take for a formula are prefixed by an
        apostrophe, and control characters are escaped.
        """
        cell = str if raw else escape_csv_cell
        rows = [
            {**row, "model": cell(str(row["model"])), "name": cell(str(row["name"]))}
            for row in self.table_rows()
        ]
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def accuracies_by_group(report: MinimalPairsReport) -> Iterator[tuple[str, PairAccuracy]]:
    """The overall accuracy, then by file, phenomenon and paradigm, each with its grouping."""
    yield "all", report.overall
    for by, accuracies in zip(
        PAIR_GROUPS, (report.files, report.phenomena, report.paradigms), strict=True
    ):
        yield from ((by, accuracy) for accuracy in accuracies)


def _accuracies_first(row: Mapping[str, Any]) -> dict[str, Any]:
    accuracies = ("accuracy", "standard_error", "accuracy_ties_half", "accuracy_per_token")
    counts = ("pairs", "ties", "with_unknown")
    names = [name for name in ("model", "by", "name") if name in row]
    return {name: row[name] for name in (*names, *accuracies, *counts)}


def compare_minimal_pairs(
    reports: dict[str, MinimalPairsReport], *, seed: int = 0
) -> MinimalPairsComparison:
    """Compare the reports on the same pairs, with the difference of every two models."""
    names = list(reports)
    credits = np.array([reports[name].credits for name in names], dtype=np.float64).T
    differences = []
    if len(names) > 1:
        ratios = paired_bootstrap(credits, np.ones_like(credits), seed=seed)
        for first, second in combinations(range(len(names)), 2):
            value = float(credits[:, first].mean() - credits[:, second].mean())
            difference = interval(ratios, value, first, second)
            differences.append(
                MinimalPairsDifference(
                    first=names[first], second=names[second], interval=difference
                )
            )
    return MinimalPairsComparison(reports=reports, differences=tuple(differences))


def unique_model_names(paths: Sequence[Path]) -> list[str]:
    """The folder names of the models; full paths where names collide, and a path only once."""
    repeated = [path for number, path in enumerate(paths) if path in paths[:number]]
    if repeated:
        raise UserError(
            f"the run {repeated[0]} is given twice; name each run once (lmlab.wrap takes a name=)."
        )
    names = [path.resolve().name for path in paths]  # "." has no name of its own
    return [
        name if names.count(name) == 1 else str(path)
        for name, path in zip(names, paths, strict=True)
    ]
