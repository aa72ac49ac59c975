"""Score records: a number, what kind of number it is, and by which conventions it was taken."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from lmlab.core.errors import UserError
from lmlab.core.score_kind import (
    NORMALISED_KINDS,
    ScoreKind,
)

LEFT_TO_RIGHT = "left to right"
"""The order of prediction by the chain rule: each token given all before it."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The choices behind a figure; two figures compare only where these agree."""

    tokenizer: str
    """Kind and size, as 'word, 9914 tokens'."""
    start: bool
    """Whether a start symbol is the first context."""
    end: bool
    """Whether the end of the sequence is predicted and counted."""
    unknown: str = "counted as one token"
    """What happens to words outside the vocabulary."""
    window: int | None = None
    """Tokens of context beyond which the rest is cut off; None where all of it is seen."""
    stride: int | None = None
    """Tokens newly scored in each window of a rolling score."""
    lookahead: int = 0
    """Of a rolling score by a model that reads both ways: tokens of each window behind those that
    it counts, so that these stand in its middle. The first and the last window count to the ends of
    the text."""
    segment_length: int | None = None
    """Tokens that are read at once, where a longer text is read so, stretch after stretch, each
    with what is remembered of those before it; None where texts are read as one."""
    memory: int | None = None
    """Places before a stretch (without stretches: before each token) that are remembered; None
    where nothing is forgotten."""
    state_carried: bool = False
    """Whether the state goes on from one line to the next (contiguous text)."""
    source: bool = False
    """Whether each text is given another: log p(text | source)."""
    max_length: int | None = None
    """Length at which sequences are cut, symbols included."""
    order: str = LEFT_TO_RIGHT
    """The order in which the tokens are predicted."""
    method: str = "own"
    """own: the log-probability that the system defines; else the name of another way."""
    head: str = "own"
    """own: scores as the model takes them; none: inner products with token embeddings."""
    positions: tuple[int, ...] = ()
    """Places of the tokens that were hidden together, the first is 1; none by most methods."""
    mean: bool = False
    """Whether the figure is the mean over all tokens of a text; else the sum over scored ones."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """One predicted token: its text, its place in the characters, its log-probability in nats."""

    token: str
    start: int
    end: int
    log_prob: float
    unknown: bool = False


@dataclass(frozen=True, kw_only=True)
class Score:
    """The log-probability of one text, in nats.

    `total` is the sum of `per_token` and of `per_sequence`, the term that belongs to no token (a
    VAE's KL). Where the value is only known to lie in an interval, `low` and `high` give it.
    """

    text: str
    total: float
    tokens: int
    """Predicted tokens, the end of the sequence included where the convention counts it."""
    characters: int
    kind: ScoreKind
    convention: Convention
    per_token: tuple[TokenScore, ...] = ()
    """Empty where tokens were not asked for, or the text is scored as a whole."""
    per_sequence: float = 0.0
    low: float | None = None
    high: float | None = None
    unknown: int = 0
    source: str | None = None
    """What the text is given, where it is given something."""
    line: int | None = None
    """Line of the file that the text stands in, or its number among those given, from 1; None where
    nobody has numbered it."""

    @property
    def mean(self) -> float:
        """The total for each scored token."""
        return self.total / max(self.tokens, 1)

    @property
    def has_token_scores(self) -> bool:
        """Whether the scores of the tokens are known and add up to the total."""
        return len(self.per_token) == self.tokens and self.per_sequence == 0

    @property
    def figure(self) -> float:
        """What the convention asks for: the mean over the tokens, or the total."""
        return self.mean if self.convention.mean else self.total

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Many scores as one: totals divided once, so that long sequences weigh by their tokens."""

    total: float
    tokens: int
    characters: int
    sequences: int
    unknown: int
    kind: ScoreKind
    convention: Convention
    low: float | None = None
    """Lower end of the total, where every score has an interval."""
    high: float | None = None

    @property
    def nats_per_token(self) -> float:
        return 0.0 - self.total / max(self.tokens, 1)

    @property
    def bits_per_character(self) -> float | None:
        """Comparable across tokenisers, as perplexity is not.

        None where there is no character, where an unknown constant is in the total, and where
        only the tokens at some positions are scored, which have not all of the characters.
        """
        some = bool(self.convention.positions) and not self.convention.mean
        if self.characters == 0 or self.kind == "unnormalised" or some:
            return None
        return -self.total / math.log(2) / self.characters

    @property
    def perplexity(self) -> float:
        """exp of the nats per token; refused for kinds that are no distribution over sequences."""
        if self.kind not in NORMALISED_KINDS:
            raise UserError(
                f"a perplexity needs a score of kind exact, bound or estimate, and this one is "
                f"{self.kind}: compare such scores by accuracy on pairs instead."
            )
        return math.exp(min(self.nats_per_token, 700.0))

    @property
    def perplexity_interval(self) -> tuple[float, float] | None:
        """The smallest and the largest perplexity, where totals are known as intervals."""
        if self.low is None or self.high is None:
            return None
        best, worst = (replace(self, total=total).perplexity for total in (self.high, self.low))
        return best, worst


def summarise(scores: Iterable[Score]) -> Summary:
    """Add scores up; they must share their kind and convention, or the sum would mean nothing."""
    total, tokens, characters, sequences, unknown = 0.0, 0, 0, 0, 0
    first: Score | None = None
    low: float | None = 0.0
    high: float | None = 0.0
    for score in scores:
        first = first or score
        if (score.kind, score.convention) != (first.kind, first.convention):
            raise UserError("scores of different kinds or conventions can't be added up.")
        total += score.total
        tokens += score.tokens
        characters += score.characters
        unknown += score.unknown
        sequences += 1
        low = None if low is None or score.low is None else low + score.low
        high = None if high is None or score.high is None else high + score.high
    if first is None:
        raise UserError("there is nothing to add up: no text was scored.")
    return Summary(
        total=total,
        tokens=tokens,
        characters=characters,
        sequences=sequences,
        unknown=unknown,
        kind=first.kind,
        convention=first.convention,
        low=low,
        high=high,
    )
