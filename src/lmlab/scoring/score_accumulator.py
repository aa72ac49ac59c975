"""Score accumulation: a text tokenised in chunks, the running sum of its scores, its batch rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from lmlab.core.protocols import LogProbs
from lmlab.core.score import Convention, Score, ScoreKind, TokenScore
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import END, UNKNOWN, Vocabulary
from lmlab.data.text_codecs import CJK_CHARACTER

TOKEN_CHUNK_CHARACTERS = 65_536
MAX_WORD_CHARACTERS = 262_144
"""A text without a boundary for this long is divided anyway for subword tokenizers."""

# Split before a single space between two words: whether a tokenizer drops the space or joins it to
# the next word, both sides are tokenised as they would be together.
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")


class TokenChunk(NamedTuple):
    """Ids and their character spans [start, end) in the whole text."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Empty unless offsets are requested."""
    ending: bool = False
    """Whether it is the end token after a text."""


def token_chunks(
    tokenizer: TokenizerProtocol, text: str, *, offsets: bool = True
) -> Iterator[TokenChunk]:
    """Tokenise a text in chunks of bounded length, with the same tokens as the whole text."""
    start = 0
    while start < len(text):
        end = _division(tokenizer.kind, text, start + TOKEN_CHUNK_CHARACTERS)
        chunk = text if (start, end) == (0, len(text)) else text[start:end]
        if offsets:
            ids, spans = tokenizer.encode_with_offsets(chunk)
            yield TokenChunk(ids, [(a + start, b + start) for a, b in spans] if start else spans)
        else:
            yield TokenChunk(tokenizer.encode(chunk), [])
        start = end


def _division(kind: str, text: str, near: int) -> int:
    """A character offset at or after `near` where splitting changes no token; the end if none."""
    if near >= len(text):
        return len(text)
    if kind == "byte":
        return near
    if kind == "char":
        inside = text.find(UNKNOWN, near - len(UNKNOWN) + 1, near + len(UNKNOWN) - 1)
        return near if inside < 0 else inside + len(UNKNOWN)
    if kind == "wordpiece" and (
        ideograph := CJK_CHARACTER.search(text, near, near + MAX_WORD_CHARACTERS)
    ):
        near_space = _BETWEEN_WORDS.search(text, near, ideograph.start() + 1)
        return near_space.start() if near_space else ideograph.start()
    boundary = _BETWEEN_WORDS.search(text, near)
    position = boundary.start() if boundary else len(text)
    return position if kind in ("word", "wordpiece") else min(position, near + MAX_WORD_CHARACTERS)


class ScoreAccumulator:
    """Collects the log-probabilities of one text's tokens in order, as they arrive.

    Without `per_token` nothing is stored of a scored token, so memory does not grow with the text.
    """

    def __init__(self, text: str, vocabulary: Vocabulary, *, per_token: bool) -> None:
        self.text = text
        self.pending: list[int] = []
        """Ids whose log-probability has not arrived yet."""
        self._ending: list[bool] = []
        """For each pending id, whether it is the end token after the text."""
        self.closed = False
        """Whether all of the text's tokens have been added."""
        self.characters = len(text)
        """Characters of the text that are scored; a character that a cut divides counts."""
        self._vocabulary = vocabulary
        self.spans: list[tuple[int, int]] = []
        """Character spans [start, end) of the pending ids, where they are needed."""
        self._kept: list[TokenScore] | None = [] if per_token else None
        self._total, self._tokens, self._unknown = 0.0, 0, 0
        self.kind: ScoreKind = "exact"
        self._per_sequence = 0.0
        self._end: float | None = None
        """Score of the end token, once the text's last token is one."""
        self._low: float | None = None
        self._high: float | None = None

    @property
    def complete(self) -> bool:
        return self.closed and not self.pending

    def add_tokens(self, chunks: Iterable[TokenChunk]) -> None:
        """Add more of the text's tokens, to be scored."""
        for chunk in chunks:
            self.pending += chunk.ids
            self.spans += chunk.spans
            self._ending += [chunk.ending] * len(chunk.ids)

    def add_selected(
        self, scores: Sequence[float], scored: Sequence[bool], kind: ScoreKind
    ) -> None:
        """Add scores of all pending tokens, of which only those in `scored` count."""
        self.pending = list(compress(self.pending, scored))
        self.spans = list(compress(self.spans, scored))
        self._ending = list(compress(self._ending, scored))
        self.add(list(compress(scores, scored)), kind)

    def add(self, log_probs: Sequence[float], kind: ScoreKind) -> Sequence[float]:
        """Add log-probabilities of the pending tokens in order; returns the surplus."""
        count = min(len(log_probs), len(self.pending))
        unknown = self._unknowns(count)
        if self._kept is not None:
            for index, (span, value) in enumerate(zip(self.spans, log_probs, strict=False)):
                ending = self._ending[index]
                self._kept.append(self._token(span, value, unknown=unknown[index], ending=ending))
            self.spans = self.spans[count:]
        self._total += sum(log_probs[:count])
        self._tokens += count
        if count:
            self._end = log_probs[count - 1] if self._ending[count - 1] else None
        self._unknown += sum(unknown)
        self.kind = kind
        self.pending, self._ending = self.pending[count:], self._ending[count:]
        return log_probs[count:]

    def _unknowns(self, count: int) -> list[bool]:
        """Whether each of the first `count` pending tokens is unknown.

        GPT-2's end of text is its unknown token too: as the end token of a text it is no word.
        """
        unknown, ids = self._vocabulary.unknown, self.pending[:count]
        return [id == unknown and not end for id, end in zip(ids, self._ending, strict=False)]

    def add_sequence_score(self, log_probs: LogProbs, row: int) -> None:
        """Add the sequence-level part of a row's score: a term of its own, an interval."""
        self.kind = log_probs.kind
        if log_probs.whole_text_only:
            self._kept = None
        if log_probs.per_sequence is not None:
            self._per_sequence = float(log_probs.per_sequence[row])
        if log_probs.low is not None:
            self._low = float(log_probs.low[row])
        if log_probs.high is not None:
            self._high = float(log_probs.high[row])

    def score(self, convention: Convention) -> Score:
        """The score of the finished text.

        Where the end is not predicted it is not a token, and its share (of an energy, say) counts
        towards the text.
        """
        assert not self.pending, "a text is scored when all its tokens are"
        end_score = None if convention.end else self._end
        tokens = self._tokens - (end_score is not None)
        return Score(
            text=self.text,
            total=self._total + self._per_sequence,
            tokens=tokens,
            characters=self.characters,
            utf8_bytes=len(self.text[: self.characters].encode()),
            kind=self.kind,
            convention=convention,
            per_token=tuple(self._kept or ())[:tokens],
            per_sequence=self._per_sequence + (end_score or 0.0),
            low=self._low,
            high=self._high,
            unknown=self._unknown,
        )

    def _token(
        self, span: tuple[int, int], log_prob: float, *, unknown: bool, ending: bool
    ) -> TokenScore:
        start, end = span
        token = END if ending else self.text[start:end]
        return TokenScore(token=token, start=start, end=end, log_prob=log_prob, unknown=unknown)


class ScoringRow(NamedTuple):
    """One row of a batch: a text, or one window of it."""

    accumulator: ScoreAccumulator
    sequence: list[int]
    """The tokens of the whole text, preceded by the start token."""
    begin: int
    """Start of the row in the sequence."""
    end: int
    scored: int
    """Number of its tokens that count."""
    right_context: int = 0
    """Number of tokens after those."""
    source: Sequence[int] = ()
    """The source tokens, special tokens included; empty for most systems."""

    @property
    def tokens(self) -> list[int]:
        return self.sequence[self.begin : self.end]

    @property
    def counted(self) -> slice:
        """The positions of the row that count."""
        last = self.end - self.begin - self.right_context
        return slice(last - self.scored, last)

    @property
    def positions(self) -> int:
        """Length of the row, or of its source where that is longer."""
        return max(self.end - self.begin, len(self.source))
