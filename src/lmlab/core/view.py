"""A view: what an objective shows a network and what it asks of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.attention_mask import (
    AttentionMask,
    CausalMask,
    FullMask,
)
from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import MentionSpans

NO_TARGET = -100
"""Marks places where nothing is predicted."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The clean batch as one objective shows it. Every objective is a function to a View.

    Shapes: B sequences, T places. Only `inputs`, `lengths` and `attention_mask` are always there.
    """

    inputs: Tensor
    """(B, T) token ids, or (B, T, D) vectors (patches of an image)."""
    lengths: Tensor
    """(B,) real places of each row."""
    attention_mask: AttentionMask
    """Who may see whom in the content stream."""
    targets: Tensor | None = None
    """(B, T) ids to predict at each place, NO_TARGET where there is nothing to predict."""
    weights: Tensor | None = None
    """(B, T) weight of each prediction in the loss; one where None."""
    positions: Tensor | None = None
    """(B, T) or (B, T, 2) positions where they are not 0, 1, 2 …"""
    segments: Tensor | None = None
    """(B, T) segment ids (sentence A and B)."""
    order: Tensor | None = None
    """(B, T) the turn at which each place is predicted, where it is not left to right."""
    query_attention_mask: AttentionMask | None = None
    """Who may see whom in the second stream, where predictions are made by one (XLNet)."""
    clean_positions: Tensor | None = None
    """(B, T) the place in the clean text that each target came from, -1 where none."""
    clean_rows: Tensor | None = None
    """(B, T) the clean row that each place came from, where texts were put together otherwise."""
    mentions: Tensor | None = None
    """(B, T) id of the entity mention that covers each place, -1 where none."""
    spans: MentionSpans | None = None
    """The mentions of entities that a memory may look up; none where None."""
    labels: Tensor | None = None
    """(B,) a class for the whole row (next sentence or not)."""
    decoder: View | None = None
    """The decoder's own view, in an encoder-decoder; the encoder's is then this one."""

    @property
    def prediction_view(self) -> View:
        """The view that has the targets: the decoder's, where there is one."""
        return self if self.decoder is None else self.decoder


def causal_view(batch: Batch) -> View:
    """The tokens at places 0 … T-2 shown and those at 1 … T-1 predicted, each from those before."""
    inputs, (targets, clean_positions) = batch.tokens[:, :-1], _predicted(batch)
    lengths = (batch.lengths - 1).clamp(min=0)
    return View(
        inputs=inputs,
        lengths=lengths,
        attention_mask=CausalMask(),
        targets=targets,
        clean_positions=clean_positions,
    )


def autoencoding_view(batch: Batch) -> View:
    """The tokens at places 1 … T-1 shown all at once and all of them asked back."""
    inputs, (targets, clean_positions) = batch.tokens[:, 1:], _predicted(batch)
    lengths = (batch.lengths - 1).clamp(min=0)
    return View(
        inputs=inputs,
        lengths=lengths,
        attention_mask=FullMask(),
        targets=targets,
        clean_positions=clean_positions,
    )


def _predicted(batch: Batch) -> tuple[Tensor, Tensor]:
    """(B, T - 1) the tokens at places 1 … T-1, and those places; marked where there are none."""
    targets = batch.tokens[:, 1:]
    place = torch.arange(1, batch.tokens.shape[1], device=targets.device)[None, :]
    padding = place >= batch.lengths[:, None]
    return targets.masked_fill(padding, NO_TARGET), place.masked_fill(padding, -1)
