"""Model comparison records: rows, differences, loss of the true distribution, sentences, notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmlab.core.score import Convention, ScoreKind, TokenScore

Unit = Literal["token", "character"]


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
    parameters: int
    nats_per_token: float
    """The mean over seeds, if there are several."""
    seed_std: float | None
    """Standard deviation over seeds (n - 1); None for a single run."""
    perplexity: float | None
    """exp(nats_per_token); None where the score is not a distribution over sequences."""
    bits_per_character: float | None
    """None where it is undefined: see `Summary.bits_per_character`."""
    tokens: int
    """Predicted tokens of the split, end tokens included where the convention counts them."""
    characters: int
    unknown: int
    """Unknown tokens among them."""
    sequences: int
    floor: float | None = None
    """Nats per token of the true distribution on this split and tokenisation; None if unknown."""
    regret: float | None = None
    """nats_per_token - floor: the excess loss, up to sampling error of the split."""
    train_seconds: float | None = None
    """The mean over seeds; None where it is not recorded."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference first - second in nats per token (per character where their tokens differ).

    Negative means the first is better. 95 % interval and p-value by a paired bootstrap over
    sentences; p-values are not corrected for multiple comparisons. Seeds are averaged first, so the
    variance over seeds is not included.
    """

    first: str
    second: str
    nats: float
    low: float
    high: float
    p_value: float
    unit: Unit = "token"

    @property
    def nats_per_token(self) -> float | None:
        """None where the two have different tokens."""
        return self.nats if self.unit == "token" else None


@dataclass(frozen=True, kw_only=True)
class EntropyFloor:
    """Entropy floor: the loss of the true distribution, the lower bound in expectation."""

    nats_per_text: float
    """On this split: - Σ log p_true / texts."""
    bits_per_character: float
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
class Comparison:
    """Comparison of several models on one split of one corpus."""

    corpus: str
    split: str
    rows: tuple[ComparisonRow, ...]
    """In the order of the table: see `comparison_tables.row_groups`."""
    differences: tuple[Difference, ...]
    floor: EntropyFloor | None
    notes: tuple[str, ...]
    """Caveats a reader needs to compare the rows."""
    sentences: tuple[ComparedSentence, ...] = ()
    totals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    """Log-probability of each sentence of the split by row name, the mean over seeds."""

    def row(self, name: str) -> ComparisonRow:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def as_dict(self) -> dict[str, object]:
        """A JSON-serialisable dict, without the per-sentence totals."""
        return {
            "corpus": self.corpus,
            "split": self.split,
            "rows": [asdict(row) for row in self.rows],
            "differences": [asdict(difference) for difference in self.differences],
            "floor": None if self.floor is None else asdict(self.floor),
            "notes": list(self.notes),
        }
