"""Span pointers of CogQA: start and end distributions, span extraction, labels, loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.loss import IGNORE_LABEL, Loss

HOP_POINTER, ANSWER_POINTER = 0, 2
"""Indices of S_hop, E_hop and S_ans, E_ans among the four pointers."""
POINTER_COUNT = 4

SpanPositions = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class PointedSpan:
    """Positions [first, last] of an input, and the probability of its start."""

    first: int
    last: int
    probability: float


def pointer_log_probs(scores: Tensor, allowed: Tensor) -> Tensor:
    """(B, T, 4) log P[i] = S · T_i - log Σ_j exp(S · T_j), over position 0 and `allowed` (B, T).

    Position 0 means "no span"; positions of the question and the clues are not allowed.
    """
    open_ = allowed.clone()
    open_[:, 0] = True
    return torch.log_softmax(scores.masked_fill(~open_[..., None], float("-inf")), 1)


def best_spans(
    start: Tensor, end: Tensor, allowed: Tensor, *, top: int, longest: int
) -> list[PointedSpan]:
    """The spans of one kind in one input, by log-probabilities (T,) of its starts and ends.

        start_k ∈ top-K P_start,   end_k = argmax_{start_k ≤ j ≤ start_k + longest} P_end[j]

    Starts no more probable than position 0 are dropped: the threshold of Ding et al. 2019.
    """
    inside = start.masked_fill(~allowed, float("-inf"))
    found = []
    for place in inside.topk(min(top, len(inside))).indices.tolist():
        if not inside[place] > start[0]:
            break
        reach = end.masked_fill(~allowed, float("-inf"))[place : place + longest + 1]
        found.append(
            PointedSpan(
                first=place, last=place + int(reach.argmax()), probability=float(start[place].exp())
            )
        )
    return found


def pointer_labels(hops: Sequence[SpanPositions], answer: SpanPositions | None) -> list[list[int]]:
    """The gold positions of each of the four pointers, equally weighted: 1/k for k hops.

    Position 0 if there is no span.
    """
    answers = [] if answer is None else [answer]
    return [[span[end] for span in found] or [0] for found in (hops, answers) for end in (0, 1)]


NO_LABELS: list[list[int]] = [[] for _ in range(POINTER_COUNT)]
"""Labels of an input that is not in the loss."""


def label_tensor(labels: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """(B, 4, K) positions, NO_LABEL where there are fewer than K."""
    most = max((len(each) for row in labels for each in row), default=0)
    found = torch.full((len(labels), POINTER_COUNT, max(most, 1)), IGNORE_LABEL)
    for number, row in enumerate(labels):
        for pointer, places in enumerate(row):
            found[number, pointer, : len(places)] = torch.tensor(places, dtype=torch.long)
    return found


def pointer_loss(log_probs: Tensor, labels: Tensor) -> Loss:
    """Cross-entropy -Σ_i gt[i] log P[i] of all four pointers, and the number of labelled inputs.

    log_probs (B, T, 4), labels (B, 4, K); gt is 1/k at k gold positions.
    """
    told = labels != IGNORE_LABEL
    counts = told.sum(-1)
    picked = log_probs.transpose(1, 2).gather(2, labels.clamp(min=0))
    each = picked.masked_fill(~told, 0.0).sum(-1) / counts.clamp(min=1)
    return Loss(-each.sum(), (counts > 0).any(1).sum().to(each))
