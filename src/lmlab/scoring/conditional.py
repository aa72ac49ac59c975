"""Conditional scores: log p(continuation | prefix) in nats, or the nearest substitute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice

from lmlab.core.errors import UserError
from lmlab.core.score import Convention, Score, ScoreKind, ScorerKind, TokenScore
from lmlab.scoring.masked_text_scoring import score_masked_texts
from lmlab.scoring.scorer import Scorer

PAIRS_PER_CHUNK = 256
"""Pairs whose masked positions are scored together."""
TOKEN_SCORERS: frozenset[ScorerKind] = frozenset({"left-to-right", "reconstruction"})
"""Kinds of scorers whose scores of a continuation's tokens add up to its own."""
WHOLE_TEXT = "whole text"
"""The method of a conditional score where the system scores only whole texts."""


@dataclass(frozen=True, kw_only=True)
class ConditionalScore:
    """Conditional score: log p(continuation | prefix) in nats, or a substitute (see `kind`)."""

    prefix: str
    continuation: str
    total: float
    tokens: int
    characters: int
    """Characters of the continuation …"""
    utf8_bytes: int
    """… and its bytes in UTF-8."""
    kind: ScoreKind
    convention: Convention
    per_token: tuple[TokenScore, ...]
    """Positions are those in prefix + continuation; empty where only whole texts have a score."""
    token_crosses_boundary: bool
    """Whether a token spans the boundary; it counts entirely towards the continuation."""
    unknown: int = 0

    @property
    def mean(self) -> float:
        """The total divided by the number of scored tokens."""
        return self.total / max(self.tokens, 1)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def conditional_scores(
    scorer: Scorer, pairs: Iterable[tuple[str, str]], *, end: bool = False
) -> Iterator[ConditionalScore]:
    """Conditional log-probability log p(continuation | prefix), or the nearest substitute.

    The two are concatenated as they are and tokenised together, so a space between them must be in
    one of them. A token belongs to the continuation if it ends inside it. `end` also scores the end
    token, so that the continuation is all that follows; refused where ends are not predicted.
    Memory is bounded for any number of pairs. By the system's kind of scorer, unless the scorer's
    method says more:

    - left-to-right: Σ log p(token | all before it) over the continuation's tokens, of the system's
      kind of score.
    - masked: Σ log p(token | all others) over the continuation's tokens alone, a
      pseudo-log-likelihood: each token is conditioned on the rest of the continuation.
    - reconstruction: the sum over the continuation.
    - energy, whole-text: the score of prefix + continuation, end included. It differs from
      log p(continuation, end | prefix) by log p(prefix …) ≤ 0, which is unknown but the same for
      all continuations of a prefix: unnormalised, where the score is exact or an energy (energies
      compare only at equal length); a bound remains one.
    """
    independent = scorer.with_method()
    if end and not independent.convention.end:
        raise UserError(
            "this model is conditioned on the length, so the end token has no score; remove "
            "--end (in Python end=)."
        )
    method, kind = independent.method, independent.system.scorer_kind
    if method is not None and method.masked:
        yield from _score_masked(independent, pairs)
    elif method is None and kind == "masked":
        yield from _score_masked(scorer.with_method("norm"), pairs)
    elif kind in TOKEN_SCORERS and (method is None or method.name != "energy"):
        yield from _score_pairs(independent, pairs, partial(_continuation, end=end))
    else:
        yield from _score_pairs(independent, pairs, _whole_text)


def with_separator(prefix: str, continuation: str, separator: str) -> str:
    """Prepend a separator to the continuation, unless there is a space at the boundary already."""
    has_space = prefix[-1:].isspace() or continuation[:1].isspace()
    return continuation if has_space or not prefix or not continuation else separator + continuation


def _score_masked(scorer: Scorer, pairs: Iterable[tuple[str, str]]) -> Iterator[ConditionalScore]:
    """Mask and score the continuation's positions only, those of many pairs together."""
    remaining = iter(pairs)
    while chunk := list(islice(remaining, PAIRS_PER_CHUNK)):
        texts = [prefix + continuation for prefix, continuation in chunk]
        prefix_lengths = [len(prefix) for prefix, _ in chunk]
        scores = score_masked_texts(scorer, texts, per_token=True, after=prefix_lengths)
        for (prefix, continuation), score in zip(chunk, scores, strict=True):
            yield _continuation(prefix, continuation, score, end=False)


def _score_pairs(
    scorer: Scorer,
    pairs: Iterable[tuple[str, str]],
    record: Callable[[str, str, Score], ConditionalScore],
) -> Iterator[ConditionalScore]:
    """Score each pair as one text, and convert the score to a record."""
    waiting: deque[tuple[str, str]] = deque()

    def texts() -> Iterator[str]:
        for prefix, continuation in pairs:
            waiting.append((prefix, continuation))
            yield prefix + continuation

    for score in scorer.score(texts()):
        yield record(*waiting.popleft(), score)


def _continuation(prefix: str, continuation: str, score: Score, *, end: bool) -> ConditionalScore:
    """The score of the tokens that end inside the continuation."""
    inside = tuple(token for token in score.per_token if token.end > len(prefix))
    end_tokens = [t for t in score.per_token if t.start == t.end == len(score.text)]
    scored = tuple(t for t in inside if t not in end_tokens) + (tuple(end_tokens) if end else ())
    record = _record(prefix, continuation, score, scored, sum(token.log_prob for token in scored))
    return replace(record, convention=replace(record.convention, end=end))


def _whole_text(prefix: str, continuation: str, score: Score) -> ConditionalScore:
    """The whole text's score, where tokens have none."""
    record = _record(prefix, continuation, score, score.per_token, score.total)
    kind: ScoreKind = "bound" if score.kind == "bound" else "unnormalised"
    convention = replace(score.convention, method=WHOLE_TEXT)
    return replace(record, kind=kind, convention=convention, tokens=score.tokens, per_token=())


def _record(
    prefix: str, continuation: str, score: Score, scored: Sequence[TokenScore], total: float
) -> ConditionalScore:
    boundary = len(prefix)
    return ConditionalScore(
        prefix=prefix,
        continuation=continuation,
        total=total,
        tokens=len(scored),
        characters=len(continuation),
        utf8_bytes=len(continuation.encode()),
        kind=score.kind,
        convention=score.convention,
        per_token=tuple(scored),
        token_crosses_boundary=any(token.start < boundary < token.end for token in scored),
        unknown=sum(token.unknown for token in scored),
    )
