"""CogQA's start/end span pointers: distributions, extraction, labels and loss; CogQA's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

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
    candidates = allowed.clone()
    candidates[:, 0] = True
    return torch.log_softmax(scores.masked_fill(~candidates[..., None], float("-inf")), 1)


def best_spans(
    start: Tensor, end: Tensor, allowed: Tensor, *, top: int, max_length: int
) -> list[PointedSpan]:
    """The spans of one kind in one input, by log-probabilities (T,) of its starts and ends.

        start_k ∈ top-K P_start,   end_k = argmax_{start_k ≤ j ≤ start_k + max_length} P_end[j]

    Starts no more probable than position 0 are dropped: the threshold of Ding et al. 2019.
    """
    inside = start.masked_fill(~allowed, float("-inf"))
    spans = []
    for position in inside.topk(min(top, len(inside))).indices.tolist():
        if not inside[position] > start[0]:
            break
        end_scores = end.masked_fill(~allowed, float("-inf"))[position : position + max_length + 1]
        spans.append(
            PointedSpan(
                first=position,
                last=position + int(end_scores.argmax()),
                probability=float(start[position].exp()),
            )
        )
    return spans


def pointer_labels(hops: Sequence[SpanPositions], answer: SpanPositions | None) -> list[list[int]]:
    """The gold positions of each of the four pointers, equally weighted: 1/k for k hops.

    Position 0 if there is no span.
    """
    answers = [] if answer is None else [answer]
    return [[span[end] for span in spans] or [0] for spans in (hops, answers) for end in (0, 1)]


NO_LABELS: list[list[int]] = [[] for _ in range(POINTER_COUNT)]
"""Labels of an input that is not in the loss."""


def label_tensor(labels: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """(B, 4, K) positions, NO_LABEL where there are fewer than K."""
    max_labels = max((len(gold) for row in labels for gold in row), default=0)
    padded = torch.full((len(labels), POINTER_COUNT, max(max_labels, 1)), IGNORE_LABEL)
    for number, row in enumerate(labels):
        for pointer, positions in enumerate(row):
            padded[number, pointer, : len(positions)] = torch.tensor(positions, dtype=torch.long)
    return padded


def pointer_loss(log_probs: Tensor, labels: Tensor) -> Loss:
    """Cross-entropy -Σ_i gt[i] log P[i] of all four pointers, and the number of labelled inputs.

    log_probs (B, T, 4), labels (B, 4, K); gt is 1/k at k gold positions.
    """
    is_label = labels != IGNORE_LABEL
    counts = is_label.sum(-1)
    picked = log_probs.transpose(1, 2).gather(2, labels.clamp(min=0))
    losses = picked.masked_fill(~is_label, 0.0).sum(-1) / counts.clamp(min=1)
    return Loss(-losses.sum(), (counts > 0).any(1).sum().to(losses))


@dataclass(frozen=True, kw_only=True)
class CogQAConfig:
    """Settings of the two systems of CogQA (Ding et al. 2019)."""

    starts: int = field(default=3, metadata={"at_least": 1})
    """Top K span starts per paragraph, for next hops and answers each."""
    max_span_length: int = field(default=8, metadata={"at_least": 0})
    """Maximum distance of a span's end from its start, in tokens."""
    semantics_layer: int = field(default=0, metadata={"at_least": 0})
    """Layer whose hidden state at position 0 represents a node, from 1; 0 for the second to
    last."""
    max_graph_nodes: int = field(default=16, metadata={"at_least": 1})
    """Maximum number of graph nodes."""
    graph_steps: int = field(default=2, metadata={"at_least": 0})
    """Message-passing steps of the graph network."""
    predictor_width: int = field(default=0, metadata={"at_least": 0})
    """Hidden width of the answer predictors; 0 for a node's own width."""
    joint_training: bool = False
    """Whether the second stage also trains the encoder, as Ding et al. do; else it is frozen."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CogQAConfig:
        """The CogQA settings among given settings, defaults for the rest."""
        return cls(
            **{
                option.name: settings[option.name]
                for option in fields(cls)
                if option.name in settings
            }
        )
