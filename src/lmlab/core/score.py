"""Score records: log-probability, its kind (exact, bound, …), conventions; summed to perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from lmlab.core.errors import UserError
from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord, scalar_fields
from lmlab.core.score_html import (
    score_html,
    score_notes,
    summary_figures,
    summary_html,
    surprisal_legend,
)

if TYPE_CHECKING:
    from lmlab.core.word_scores import Span, WordScore

ScoreKind = Literal["exact", "bound", "estimate", "pseudo", "reconstruction", "unnormalised"]
"""
- exact: the distribution's own log-probability
- bound: never above it (an ELBO)
- estimate: random, right on average or in the limit
- pseudo: a sum of conditionals that need not come from one joint distribution
- reconstruction: log-probability of the input given its own encoding
- unnormalised: right up to an unknown constant (an energy)
"""

ScorerKind = Literal[
    "left-to-right", "look-ahead", "masked", "energy", "reconstruction", "whole-text"
]
"""How a system's own score of a text comes about, declared by its class (`System.scorer_kind`).

- left-to-right: a token's score is its log-probability given all tokens before it (GPT, a grammar's
  prefix probabilities)
- look-ahead: the same, but of a module from elsewhere that may see later tokens too
- masked: a token's score is its log-probability given all the others (BERT)
- energy: the text has an energy, known up to a constant; tokens have no log-probability
- reconstruction: a token's score is its log-probability given an encoding of the whole text
- whole-text: only the sum over a text means something (an ELBO, the answer to a question)
"""
SCORER_KINDS: tuple[ScorerKind, ...] = get_args(ScorerKind)

SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)
NORMALISED_KINDS: frozenset[ScoreKind] = frozenset({"exact", "bound", "estimate"})
"""Kinds with a perplexity."""
LEFT_TO_RIGHT = "left to right"
"""The order of prediction by the chain rule: each token given all before it."""
LOOKING_AHEAD = "left to right, with later tokens seen"
"""The order of a model that may use tokens to the right of the one it predicts."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """Scoring conventions; two values are comparable only if these agree."""

    tokenizer: str
    """Kind and size, as 'word, 9914 tokens'."""
    start: bool
    """Whether a start token is the first context."""
    end: bool
    """Whether the end token is predicted and counted."""
    unknown: str = "counted as one token"
    """How out-of-vocabulary words are treated."""
    window: int | None = None
    """Maximum number of context tokens; None if unlimited."""
    stride: int | None = None
    """Tokens newly scored in each window of a rolling score."""
    lookahead: int = 0
    """In rolling scoring by a bidirectional model: right-context tokens of each window that are not
    counted in it. The first and the last window count up to the ends of the text."""
    segment_length: int | None = None
    """Tokens per segment, if a longer text is encoded segment by segment with memory; None if texts
    are encoded whole."""
    memory: int | None = None
    """Positions before a segment (without segments: before each token) that are remembered; None if
    nothing is forgotten."""
    state_carried: bool = False
    """Whether the state is carried from line to line (contiguous text)."""
    source: bool = False
    """Whether each text is conditioned on another: log p(text | source)."""
    max_length: int | None = None
    """Length at which sequences are truncated, special tokens included."""
    order: str = LEFT_TO_RIGHT
    """The order in which the tokens are predicted."""
    method: str = "own"
    """own: the log-probability that the system defines; else the name of another method."""
    head: str = "own"
    """own: the model's own logits; none: inner products with token embeddings."""
    positions: tuple[int, ...] = ()
    """Positions of the tokens masked together, counted from 1; empty for most methods."""
    mean: bool = False
    """Whether the value is the mean over all tokens of a text; else the sum over scored ones."""
    precision: str = "float32"
    """Precision of the model's layers; log-probabilities are float32 or better always."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """One predicted token: its text, its character offsets, its log-probability in nats."""

    token: str
    start: int
    end: int
    log_prob: float
    unknown: bool = False


@dataclass(frozen=True, kw_only=True)
class Score(NotebookRecord):
    """The log-probability of one text, in nats.

    `total` is the sum of `per_token` and of `per_sequence`, the term that belongs to no token (a
    VAE's KL). If only an interval is known, it is `low` to `high`.
    """

    number_column: ClassVar[str] = "line"

    text: str
    total: float
    tokens: int
    """Predicted tokens, including the end token if the convention counts it."""
    characters: int
    utf8_bytes: int
    """Bytes of the scored text in UTF-8, whatever the tokens are."""
    kind: ScoreKind
    convention: Convention
    per_token: tuple[TokenScore, ...] = ()
    """Empty if not requested, or if only the whole text is scored."""
    per_sequence: float = 0.0
    low: float | None = None
    high: float | None = None
    unknown: int = 0
    source: str | None = None
    """The text that this one is conditioned on, if any."""
    line: int | None = None
    """Line of the text in its file, or its number among those given, from 1; None if not
    numbered."""

    @property
    def mean(self) -> float:
        """The total divided by the number of scored tokens."""
        return self.total / max(self.tokens, 1)

    @property
    def has_token_scores(self) -> bool:
        """Whether token scores are known and sum to the total."""
        return len(self.per_token) == self.tokens and self.per_sequence == 0

    @property
    def figure(self) -> float:
        """The value by convention: the mean over the tokens, or the total."""
        return self.mean if self.convention.mean else self.total

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each token: its place in the text and its surprisal; none without tokens."""
        for position, token in enumerate(self.per_token, 1):
            surprisal = 0.0 - token.log_prob
            yield {
                "line": self.line,
                "kind": self.kind,
                "position": position,
                "token": token.token,
                "start": token.start,
                "end": token.end,
                "surprisal_bits": surprisal / math.log(2),
                "surprisal_nats": surprisal,
                "unknown": token.unknown,
            }

    def html_body(self) -> Html:
        """The text with its tokens shaded by surprisal."""
        return score_html(self)

    def html_notes(self) -> Sequence[str]:
        """How to read the shading, what the kind of score means, and the convention."""
        legend = (surprisal_legend(),) if self.per_token else ()
        return (*legend, *score_notes(self.kind, self.convention))

    def words(self, given: Sequence[str] | None = None) -> list[WordScore]:
        """Token scores summed by word; see `word_scores`.

        Words are separated by white space, or are those `given`, which spell the text (我, 爱).
        """
        from lmlab.core.word_scores import spans_of_words, word_scores

        spans: list[Span] | None = None if given is None else spans_of_words(self.text, given)
        return word_scores(self, spans)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Summary(NotebookRecord):
    """Aggregated scores: totals divided once, so that long sequences weigh by their tokens."""

    total: float
    tokens: int
    characters: int
    utf8_bytes: int
    sequences: int
    unknown: int
    kind: ScoreKind
    convention: Convention
    low: float | None = None
    """Lower bound of the total, if every score has an interval."""
    high: float | None = None

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """One row of all figures."""
        return [{**dict(summary_figures(self)), **scalar_fields(self)}]

    def html_body(self) -> Html:
        """The figures, one below the other."""
        return summary_html(self)

    def html_notes(self) -> Sequence[str]:
        """What the kind of score means, and the convention."""
        return score_notes(self.kind, self.convention)

    @property
    def nats_per_token(self) -> float:
        return 0.0 - self.total / max(self.tokens, 1)

    @property
    def bits_per_character(self) -> float | None:
        """Bits per character: comparable across tokenizers, unlike perplexity.

        None if there are no characters, if the total has an unknown constant, and if only the
        tokens at some positions are scored.
        """
        partial = bool(self.convention.positions) and not self.convention.mean
        if self.characters == 0 or self.kind == "unnormalised" or partial:
            return None
        return -self.total / math.log(2) / self.characters

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text in UTF-8: comparable across tokenizers and scripts.

        None where bits per character are.
        """
        per_character = self.bits_per_character
        return None if per_character is None else per_character * self.characters / self.utf8_bytes

    @property
    def perplexity(self) -> float:
        """exp of the nats per token; an error for kinds that are no distribution over sequences."""
        if self.kind not in NORMALISED_KINDS:
            raise UserError(
                f"perplexity needs a score of kind exact, bound or estimate, got {self.kind}; "
                "compare such scores by accuracy on pairs instead."
            )
        return math.exp(min(self.nats_per_token, 700.0))

    @property
    def perplexity_interval(self) -> tuple[float, float] | None:
        """The smallest and the largest perplexity, if totals are intervals."""
        if self.low is None or self.high is None:
            return None
        best, worst = (replace(self, total=total).perplexity for total in (self.high, self.low))
        return best, worst


class ScoreTotals:
    """Running totals of scores that share their kind and convention."""

    def __init__(self) -> None:
        self._first: Score | None = None
        self._total, self._tokens, self._characters, self._utf8_bytes = 0.0, 0, 0, 0
        self._sequences, self._unknown = 0, 0
        self._low: float | None = 0.0
        self._high: float | None = 0.0

    def add(self, score: Score) -> None:
        """Add a score."""
        first = self._first = self._first or score
        if (score.kind, score.convention) != (first.kind, first.convention):
            raise UserError("scores of different kinds or conventions can't be summed.")
        self._total += score.total
        self._tokens += score.tokens
        self._characters += score.characters
        self._utf8_bytes += score.utf8_bytes
        self._unknown += score.unknown
        self._sequences += 1
        low, high = self._low, self._high
        self._low = None if low is None or score.low is None else low + score.low
        self._high = None if high is None or score.high is None else high + score.high

    def summary(self) -> Summary:
        """The sum; a UserError if nothing was added."""
        if self._first is None:
            raise UserError("no text was scored, so there is nothing to sum.")
        return Summary(
            total=self._total,
            tokens=self._tokens,
            characters=self._characters,
            utf8_bytes=self._utf8_bytes,
            sequences=self._sequences,
            unknown=self._unknown,
            kind=self._first.kind,
            convention=self._first.convention,
            low=self._low,
            high=self._high,
        )


def summarise(scores: Iterable[Score]) -> Summary:
    """Sum scores; they must share their kind and convention."""
    totals = ScoreTotals()
    for score in scores:
        totals.add(score)
    return totals.summary()
