"""Results of mask filling: options of single masks, joint candidates for all masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from lmlab.core.score import ScoreKind
from lmlab.sampling.prompts import MaskedText


@dataclass(frozen=True, kw_only=True)
class FillOption:
    """One prediction for a mask."""

    text: str
    pieces: tuple[str, ...]
    """Its tokens as the vocabulary spells them, which distinguishes word-initial from continuation
    tokens (Ġm and m, m and ##m)."""
    log_prob: float
    """The system's log-probability in nats. Special tokens are excluded without renormalising, so
    options need not sum to one."""
    probability: float
    """exp(log_prob)."""
    share: float | None = None
    """With given candidates: its probability normalised over all candidates."""


@dataclass(frozen=True, kw_only=True)
class MaskedPosition:
    """The predictions for one mask, the other masks unknown."""

    start: int
    end: int
    """Characters [start, end) of the mask."""
    options: tuple[FillOption, ...]
    """Best first."""


@dataclass(frozen=True, kw_only=True)
class FillCandidate:
    """A joint prediction for all masks of a text."""

    answers: tuple[str, ...]
    pieces: tuple[tuple[str, ...], ...]
    """The tokens of each answer, as the vocabulary spells them."""
    text: str
    """The text with the answers filled in; continuation tokens are joined without a space."""
    log_prob: float
    """The system's log-probability in nats of all that was generated."""
    tokens: int
    """Number of tokens of all answers."""
    finished: bool = True
    """Whether the end was generated; if not, the maximum length truncated the last answer."""


@dataclass(frozen=True, kw_only=True)
class FilledText:
    """A masked text with its predictions, per mask or joint."""

    text: str
    masks: tuple[MaskedPosition, ...] = ()
    """Independent predictions per mask."""
    candidates: tuple[FillCandidate, ...] = ()
    """Joint predictions, best first or in sampling order."""
    kind: ScoreKind | None = None
    """Kind of the joint log-probabilities: exact, or pseudo if the chained conditionals need not
    belong to one distribution. None for blanks and single masks."""
    order: str | None = None
    """Factorisation order of the masks; pseudo log-probabilities depend on it."""
    note: str | None = None
    """Notes for the user: unknown words, truncated answers."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def independent_predictions(
    prompt: MaskedText, options: Sequence[tuple[FillOption, ...]]
) -> FilledText:
    """A text with the options of each mask."""
    masks = [
        MaskedPosition(start=start, end=end, options=mask_options)
        for (start, end), mask_options in zip(prompt.spans, options, strict=True)
    ]
    return FilledText(text=prompt.text, masks=tuple(masks), note=prompt.note)


def rank_options(
    texts: Sequence[str], pieces: Sequence[tuple[str, ...]], log_probs: Sequence[float]
) -> tuple[FillOption, ...]:
    """Candidates best first, each with its normalised probability."""
    shares = torch.softmax(torch.tensor(log_probs, dtype=torch.float64), 0).tolist()
    options = [
        FillOption(
            text=text,
            pieces=spelling,
            log_prob=log_prob,
            probability=math.exp(log_prob),
            share=share,
        )
        for text, spelling, log_prob, share in zip(texts, pieces, log_probs, shares, strict=True)
    ]
    return tuple(sorted(options, key=lambda option: -option.log_prob))


def distinct_candidates(fillings: Sequence[FillCandidate]) -> list[FillCandidate]:
    """The fillings without duplicate answers, first occurrences retained."""
    distinct: dict[tuple[str, ...], FillCandidate] = {}
    for filling in fillings:
        distinct.setdefault(filling.answers, filling)
    return list(distinct.values())
