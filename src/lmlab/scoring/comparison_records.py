"""Records of a comparison: a row for each model, differences, the floor, and what to beware of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmlab.core.score import Convention, TokenScore
from lmlab.core.score_kind import ScoreKind

Unit = Literal["token", "character"]


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One model on one split; runs that differ only in their seed are one model."""

    name: str
    runs: tuple[str, ...]
    """Folders of the runs."""
    system: str
    seeds: tuple[int, ...]
    kind: ScoreKind
    convention: Convention
    tokenization: str
    """What decides the tokens; rows with the same one have the same tokens."""
    parameters: int
    nats_per_token: float
    """Of several seeds the mean."""
    seed_std: float | None
    """Standard deviation over seeds (n - 1); None for a single run."""
    perplexity: float | None
    """exp(nats_per_token); None where the kind is no distribution over sequences."""
    bits_per_character: float | None
    """None where it would mean nothing: see `Summary.bits_per_character`."""
    tokens: int
    """Predicted tokens of the split, ends included where the convention counts them."""
    characters: int
    unknown: int
    """Unknown tokens among them."""
    sequences: int
    floor: float | None = None
    """The truth's own nats per token on this split, in these tokens; None where it is not known."""
    regret: float | None = None
    """nats_per_token - floor: what there is still to learn, but for chance in the split."""
    train_seconds: float | None = None
    """Of several seeds the mean; None where it is not recorded."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """first - second in nats per token (per character where their tokens differ).

    Below zero the first is better. 95 % interval and p-value by a paired bootstrap over sentences;
    p-values are not corrected for the number of comparisons, and of seeds the mean is compared, so
    that the spread over seeds is not in them.
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
    """What the true distribution itself gives, below which no model can stay for long."""

    nats_per_text: float
    """On this split: - Σ log p_true / texts."""
    bits_per_character: float
    entropy: float
    """Exact: nats per text, over all texts and not only this split."""
    entropy_per_token: float | None
    """The exact entropy over the expected number of tokens, in the language's own tokens."""


@dataclass(frozen=True, kw_only=True)
class ComparedSentence:
    """A text of the split with each row's log-probabilities by token, for a picture."""

    text: str
    tokens: Mapping[str, tuple[TokenScore, ...]]
    """By row name; at most some hundred tokens."""
    source: str | None = None
    """What the text is given, in a corpus of pairs."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Models side by side on one split of one corpus."""

    corpus: str
    split: str
    rows: tuple[ComparisonRow, ...]
    """In the order of the table: see `tables.groups`."""
    differences: tuple[Difference, ...]
    floor: EntropyFloor | None
    notes: tuple[str, ...]
    """What a reader must know to compare the rows."""
    sentences: tuple[ComparedSentence, ...] = ()
    totals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    """By row name: log-probability of each sentence of the split, the mean over seeds."""

    def row(self, name: str) -> ComparisonRow:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def as_dict(self) -> dict[str, object]:
        """All but the totals of single sentences, as JSON can hold it."""
        return {
            "corpus": self.corpus,
            "split": self.split,
            "rows": [asdict(row) for row in self.rows],
            "differences": [asdict(each) for each in self.differences],
            "floor": None if self.floor is None else asdict(self.floor),
            "notes": list(self.notes),
        }
