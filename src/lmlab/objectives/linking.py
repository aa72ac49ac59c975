"""Losses of linking: which of its candidates a mention names, where that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.loss import Loss
from lmlab.core.mentions import NO_ENTITY, Spans

LinkingLoss = Callable[[Tensor, Tensor], Tensor]
"""From the scores (K, C) of K mentions, -inf where there is no candidate, and the place (K,) of the
true one among them, to (K,) losses."""


@dataclass(frozen=True)
class SoftmaxLinking:
    """-log(exp ψ_g / Σ_k exp ψ_k) for each mention (Peters et al. 2019)."""

    def __call__(self, scores: Tensor, gold: Tensor) -> Tensor:
        log_probs = torch.log_softmax(scores, -1)
        return -log_probs.gather(-1, gold[:, None]).squeeze(-1)


@dataclass(frozen=True)
class MarginLinking:
    """max(0, γ - ψ_g) + Σ_{k≠g} max(0, γ + ψ_k) for each mention (Peters et al. 2019).

    004 has the sum inside of the first maximum, where a true entity that scores high would pay for
    false ones that do too.
    """

    margin: float = 0.2

    def __call__(self, scores: Tensor, gold: Tensor) -> Tensor:
        right = scores.gather(-1, gold[:, None])
        # What is no candidate has minus infinity, and costs nothing.
        wrong = (self.margin + scores).clamp(min=0).scatter(-1, gold[:, None], 0.0)
        return (self.margin - right).clamp(min=0).squeeze(-1) + wrong.sum(-1)


def linking_loss(measure: LinkingLoss, scores: Tensor, spans: Spans) -> Loss:
    """Over the mentions whose entity is told and among their candidates, and how many they are."""
    matches = (spans.candidates == spans.entities[:, None]) & (spans.entities != NO_ENTITY)[:, None]
    asked = matches.any(-1)
    gold = matches[asked].long().argmax(-1) if bool(asked.any()) else spans.rows[:0]
    lost = measure(scores[asked], gold) if len(gold) else scores.new_zeros(0)
    return Loss(lost.sum(), asked.sum().to(scores.dtype))
