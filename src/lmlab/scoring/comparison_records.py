"""Model comparison records: rows, differences, loss of the true distribution, sentences, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import unknown_name
from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord
from lmlab.core.score import Convention, ScoreKind, TokenScore
from lmlab.scoring.difference_matrix import MOST_LISTED, DifferenceMatrix, difference_matrices
from lmlab.scoring.metric import Metric, Number
from lmlab.scoring.multiple_comparisons import Correction

NATS = "nats"
FIRST_KEYS = (
    *("name", "runs", "system", "seeds", "settings", "kind", "convention", "tokenization"),
    "parameters",
    *("nats_per_token", "seed_std", "perplexity", "bits_per_character", "bits_per_byte"),
    *("tokens", "characters", "utf8_bytes", "unknown", "sequences"),
)
"""The first keys of a row in JSON, in this order; other metrics follow."""


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One model on one split; runs that differ only in their seed are one row."""

    name: str
    runs: tuple[str, ...]
    """Folders of the runs."""
    system: str
    seeds: tuple[int, ...]
    kind: ScoreKind
    convention: Convention
    tokenization: str
    """Identifies the tokenisation; rows with the same value have the same tokens."""
    tokens: int
    """Predicted tokens of the split, end tokens included where the convention counts them."""
    characters: int
    utf8_bytes: int
    unknown: int
    """Unknown tokens among them."""
    sequences: int
    values: Mapping[str, Number | None]
    """The metrics by name, and their spreads over seeds by theirs; None where undefined."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings in which the rows differ: see `Comparison.differing`."""

    def __getitem__(self, name: str) -> Number | None:
        """The value of a metric, as `row["perplexity"]`; None where it is undefined."""
        if name not in self.values:
            raise unknown_name("metric", name, self.values)
        return self.values[name]

    @property
    def nats_per_token(self) -> float:
        """The metric by which rows are ranked; the mean over seeds."""
        value = self.values["nats_per_token"]
        assert value is not None, "every score has nats per token"
        return value

    def as_dict(self, metrics: Sequence[Metric]) -> dict[str, object]:
        """A JSON-serialisable dict with the recorded metrics."""
        entries: dict[str, object] = asdict(self)
        del entries["values"]
        for metric in metrics:
            names = [metric.name] if metric.recorded else []
            names += [] if metric.spread is None else [metric.spread.name]
            entries |= {name: self.values.get(name) for name in names}
        return {name: entries[name] for name in (*FIRST_KEYS, *entries) if name in entries}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference first - second of a metric, by its `PairedTest`.

    In nats per token, or per character where their tokens differ; for other metrics in the
    metric's own unit. The first is the better one. 95 % interval and p-value by a paired bootstrap
    over sentences; `p_corrected` is corrected over all tests of the comparison, the interval is
    not. Seeds are averaged first, so the variance over seeds is not included.
    """

    first: str
    second: str
    value: float
    low: float
    high: float
    p_value: float
    p_corrected: float
    """The p-value by `Comparison.correction`."""
    quantity: str = NATS
    """What is subtracted: nats, or a metric."""
    unit: str = "token"
    """What it is divided by."""

    @property
    def nats_per_token(self) -> float | None:
        """None for another quantity, and where the two have different tokens."""
        return self.value if (self.quantity, self.unit) == (NATS, "token") else None

    def as_dict(self) -> dict[str, object]:
        """A JSON-serialisable dict; the value is named by the quantity."""
        return {
            "first": self.first,
            "second": self.second,
            self.quantity: self.value,
            "low": self.low,
            "high": self.high,
            "p_value": self.p_value,
            "p_corrected": self.p_corrected,
            "unit": self.unit,
        }


@dataclass(frozen=True, kw_only=True)
class EntropyFloor:
    """Entropy floor: the loss of the true distribution, the lower bound in expectation."""

    nats_per_text: float
    """On this split: - Σ log p_true / texts."""
    bits_per_character: float
    bits_per_byte: float
    entropy: float
    """Exact entropy in nats per text, over all texts and not only this split."""
    entropy_per_token: float | None
    """The exact entropy over the expected number of tokens, in the language's own tokenisation."""


@dataclass(frozen=True, kw_only=True)
class ComparedSentence:
    """A text of the split with each row's per-token log-probabilities, for a figure."""

    text: str
    tokens: Mapping[str, tuple[TokenScore, ...]]
    """By row name; at most a few hundred tokens."""
    source: str | None = None
    """The source text, in a parallel corpus."""


@dataclass(frozen=True, kw_only=True)
class Comparison(NotebookRecord):
    """Comparison of several models on one split of one corpus."""

    corpus: str
    split: str
    rows: tuple[ComparisonRow, ...]
    """In the order of the table: see `comparison_tables.row_groups`."""
    differences: tuple[Difference, ...]
    floor: EntropyFloor | None
    notes: tuple[str, ...]
    """Caveats a reader needs to compare the rows."""
    metrics: tuple[Metric, ...]
    """In the order of the columns."""
    correction: Correction = "holm"
    """How the p-values of all differences were corrected for multiple comparisons."""
    differing: tuple[str, ...] = ()
    """The settings that differ between rows of one system, and `data` if what they were trained on
    differs."""
    sentences: tuple[ComparedSentence, ...] = ()
    totals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    """Log-probability of each sentence of the split by row name, the mean over seeds."""

    def row(self, name: str) -> ComparisonRow:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each model."""
        from lmlab.scoring.comparison_notebook import comparison_rows

        return comparison_rows(self)

    def html_body(self) -> Html:
        """The table by groups of comparable rows, and the differences."""
        from lmlab.scoring.comparison_notebook import comparison_body

        return comparison_body(self)

    def html_notes(self) -> Sequence[str]:
        """The caveats."""
        return self.notes

    @cached_property
    def matrices(self) -> tuple[DifferenceMatrix, ...]:
        """The differences as matrices, one for each quantity and unit."""
        return difference_matrices([row.name for row in self.rows], self.differences)

    @property
    def shows_matrices(self) -> bool:
        """Whether the rows are too many for a list of their differences."""
        return len(self.rows) > MOST_LISTED

    def as_dict(self) -> dict[str, object]:
        """A JSON-serialisable dict, without the per-sentence totals."""
        matrices = [matrix.as_dict() for matrix in self.matrices] if self.shows_matrices else []
        return {
            "corpus": self.corpus,
            "split": self.split,
            "rows": [row.as_dict(self.metrics) for row in self.rows],
            "differences": [difference.as_dict() for difference in self.differences],
            "correction": {"method": self.correction, "tests": len(self.differences)},
            "matrices": matrices,
            "floor": None if self.floor is None else asdict(self.floor),
            "notes": list(self.notes),
        }
