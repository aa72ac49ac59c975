"""Conditional scores: the log-probability of a continuation given what stands before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from lmlab.core.kinds import Kind
from lmlab.core.protocols import Step, require
from lmlab.core.score import Convention, TokenScore
from lmlab.scoring.score import Scorer


@dataclass(frozen=True, kw_only=True)
class ConditionalScore:
    """log p(continuation | prefix) in nats."""

    prefix: str
    continuation: str
    total: float
    tokens: int
    characters: int
    """Of the continuation."""
    kind: Kind
    convention: Convention
    per_token: tuple[TokenScore, ...]
    """Their places are those in prefix + continuation."""
    divided: bool
    """Whether a token stands across the boundary; it is counted to the continuation as a whole."""
    unknown: int = 0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def conditional_scores(
    scorer: Scorer, pairs: Iterable[tuple[str, str]], *, end: bool = False
) -> Iterator[ConditionalScore]:
    """log p(continuation | prefix) = Σ log p(token | all before it) over the continuation's tokens.

    The two are joined as they are and tokenised together, as the model would read them, so a space
    between them must be in one of them. A token belongs to the continuation if it ends inside it.
    `end` counts the end of the sequence too: the continuation is then all that follows. For
    systems that factorise from left to right. Memory is bounded for any number of pairs.
    """
    require(scorer.system, Step, "a conditional score")
    waiting: deque[tuple[str, str]] = deque()

    def texts() -> Iterator[str]:
        for prefix, continuation in pairs:
            waiting.append((prefix, continuation))
            yield prefix + continuation

    for score in scorer.afresh().score(texts()):
        prefix, continuation = waiting.popleft()
        boundary = len(prefix)
        inside = tuple(token for token in score.per_token if token.end > boundary)
        closing = [t for t in score.per_token if t.start == t.end == len(score.text)]
        kept = tuple(t for t in inside if t not in closing) + (tuple(closing) if end else ())
        yield ConditionalScore(
            prefix=prefix,
            continuation=continuation,
            total=sum(token.log_prob for token in kept),
            tokens=len(kept),
            characters=len(continuation),
            kind=score.kind,
            convention=score.convention,
            per_token=kept,
            divided=any(token.start < boundary for token in inside),
            unknown=sum(token.unknown for token in kept),
        )
