"""Results of benchmark suites: groups of items, a model's result on a suite, a table of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord, rows_html
from lmlab.core.score import Convention, ScoreKind
from lmlab.core.score_descriptions import describe_convention
from lmlab.core.score_html import score_notes
from lmlab.scoring.bootstrap import DifferenceInterval
from lmlab.scoring.suite import Average, ItemResult, Measure


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The result on the items of a paradigm, of a phenomenon, or on all of a suite."""

    by: str
    """average, phenomenon or paradigm."""
    name: str
    n: int
    value: float
    """Accuracy, ties shared; or the rank correlation. Groups of several paradigms have the
    unweighted mean of these."""
    low: float
    high: float
    """95 % bootstrap interval over the items."""
    ties_to_first: float | None
    """The accuracy by BabyLM's rule, in which a tie counts as right."""
    ties: int
    """Items whose right alternative shares the first place, or with a tied comparison."""
    with_unknown: int
    """Items with an unknown token in one of their texts."""

    def as_dict(self) -> dict[str, object]:
        return {name: None if _is_nan(value) else value for name, value in vars(self).items()}


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """A model's result on a suite: the average first, then phenomena, then paradigms."""

    model: str
    suite: str
    measure: Measure
    average_over: Average
    paradigms: int
    all_paradigms: int | None
    """How many the whole benchmark has."""
    kind: ScoreKind
    convention: Convention
    groups: tuple[GroupResult, ...]
    items: tuple[ItemResult, ...]

    @property
    def average(self) -> GroupResult:
        return self.groups[0]

    def level(self, by: str) -> list[GroupResult]:
        """The groups of one level."""
        return [group for group in self.groups if group.by == by]

    def as_dict(self) -> dict[str, object]:
        return {
            "model": self.model,
            "suite": self.suite,
            "measure": self.measure,
            "average_over": self.average_over,
            "paradigms": self.paradigms,
            "all_paradigms": self.all_paradigms,
            "kind": self.kind,
            "convention": self.convention.as_dict(),
            "groups": [group.as_dict() for group in self.groups],
        }


@dataclass(frozen=True, kw_only=True)
class SuiteDifference:
    """Difference of two models' averages on a suite."""

    suite: str
    first: str
    second: str
    interval: DifferenceInterval
    """Paired bootstrap over the items, 95 %."""


@dataclass(frozen=True, kw_only=True)
class SuiteFailure:
    """A suite that a model could not be evaluated on, as where its texts are too long for it."""

    suite: str
    model: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Benchmark(NotebookRecord):
    """Results of several models on one suite, or on the suites of a collection."""

    name: str
    title: str
    sources: tuple[str, ...]
    results: tuple[SuiteResult, ...]
    """By suite, and within one by model in the given order."""
    differences: tuple[SuiteDifference, ...]
    failures: tuple[SuiteFailure, ...] = ()

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(result.model for result in self.results))

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each model, suite and group."""
        return [
            {"model": result.model, "suite": result.suite, "measure": result.measure}
            | group.as_dict()
            | {"kind": result.kind}
            for result in self.results
            for group in result.groups
        ]

    def html_body(self) -> Html:
        """Averages and phenomena; `to_pandas` has the paradigms too."""
        return rows_html([row for row in self.table_rows() if row["by"] != "paradigm"])

    def html_notes(self) -> Sequence[str]:
        """How to read the figures, the kinds of score and the differences."""
        scores = [n for r in self.results for n in score_notes(r.kind, r.convention)]
        return list(dict.fromkeys([*self.notes(), *scores]))

    def notes(self) -> list[str]:
        """How to read the figures, and the conventions behind them."""
        notes = [f"{f.model} has no result on {f.suite}: {f.reason}" for f in self.failures]
        for result in {result.suite: result for result in self.results}.values():
            notes.append(_average_note(result))
        if any(group.ties_to_first is not None for r in self.results for group in r.groups):
            notes.append(
                "A tie counts 1/k where k alternatives share the first place; by BabyLM's rule, "
                "ties to first, it counts as right."
            )
        accuracies = [result for result in self.results if result.measure == "accuracy"]
        if any(result.average.ties_to_first is None for result in accuracies):
            notes.append("A tied comparison fulfils neither < nor >, so it counts as wrong.")
        return notes

    def conventions(self) -> list[str]:
        """Kind and convention of the scores, with the models and suites that share them."""
        shared: dict[str, list[SuiteResult]] = {}
        for result in self.results:
            words = f"kind {result.kind}; {describe_convention(result.convention)}"
            shared.setdefault(words, []).append(result)
        return [f"{_models_and_suites(results)}: {words}" for words, results in shared.items()]

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "sources": list(self.sources),
            "results": [result.as_dict() for result in self.results],
            "differences": [asdict(difference) for difference in self.differences],
            "failures": [asdict(failure) for failure in self.failures],
            "notes": self.notes(),
        }


def _models_and_suites(results: Sequence[SuiteResult]) -> str:
    models = dict.fromkeys(result.model for result in results)
    suites = dict.fromkeys(result.suite for result in results)
    return f"{', '.join(models)} on {', '.join(suites)}"


def _average_note(result: SuiteResult) -> str:
    if result.measure == "spearman":
        return f"{result.suite}: Spearman's rank correlation with people's preferences."
    over = "paradigms" if result.average_over == "paradigm" else "phenomena of those over paradigms"
    note = f"{result.suite}: unweighted mean over {over}; paradigms in these data: "
    note += str(result.paradigms)
    if result.all_paradigms is not None and result.paradigms < result.all_paradigms:
        note += f" of {result.all_paradigms}, so not comparable with published averages"
    return f"{note}."
