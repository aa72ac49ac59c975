"""Benchmark suites: the contract of a suite and of its items, and what becomes of an item.

A file of `suites/` is a reader of a benchmark's own format: it defines SUITE, a `Suite` with the
file's name or a `SuiteCollection`. Items say which texts are to be scored and what their scores
mean; `suite_evaluation.py` does the scoring, the averages and the intervals for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmlab.core.score import Score
from lmlab.scoring.conditional import ConditionalScore

AnyScore = Score | ConditionalScore
Measure = Literal["accuracy", "spearman"]
"""accuracy: mean credit of the items; spearman: rank correlation of the model's preference for the
first alternative with that of people."""
Average = Literal["paradigm", "phenomenon"]


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """A text to be scored: log p(continuation | prefix), or log p(continuation) without one."""

    continuation: str
    prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """What a model made of an item."""

    phenomenon: str
    paradigm: str
    credit: float
    """1 right, 0 wrong; where k alternatives tie for the first place, 1/k if the right one is
    among them: what breaking the tie at random would give on average."""
    first_credit: float | None = None
    """BabyLM's rule: a tie goes to the first alternative, which is the right one."""
    tie: bool = False
    unknown: bool = False
    """Whether an unknown token is in any text of the item."""
    prediction: str = ""
    """The text that is chosen: the first of those that tie."""
    preference: float | None = None
    """Probability of the first alternative among all: softmax of their log-probabilities."""
    human_preference: float | None = None


class SuiteItem(ABC):
    """An item of a suite: the texts to be scored, and what their scores mean."""

    phenomenon: str
    paradigm: str

    @abstractmethod
    def requests(self) -> Sequence[TextRequest]:
        """The texts to be scored."""

    @abstractmethod
    def result(self, scores: Sequence[AnyScore]) -> ItemResult:
        """The result, from the scores of the requests in their order."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A benchmark suite: how its data are read, and how its results are averaged."""

    name: str
    """The name of its file, with hyphens."""
    title: str
    source: str
    """The paper."""
    read: Callable[[Path], Sequence[SuiteItem]]
    """Reads a file or a folder."""
    measure: Measure = "accuracy"
    average: Average = "paradigm"
    """paradigm: the unweighted mean over paradigms; phenomenon: that over phenomena of the means
    over their paradigms."""
    paradigms: int | None = None
    """How many paradigms the whole benchmark has, where data may hold some of them."""
    conditional: bool = False
    """Whether requests have prefixes."""
    by_token: bool = False
    """Whether items need the scores of tokens."""
    babylm_task: str | None = None
    """The task's name in BabyLM's layout of predictions."""


@dataclass(frozen=True, kw_only=True)
class SuiteCollection:
    """Suites whose data are subfolders of one folder."""

    name: str
    title: str
    source: str
    folders: dict[str, str]
    """The folder of each suite, by the suite's name."""
