"""View: an objective's inputs, attention mask and targets of a batch; causal and autoencoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmlab.core.attention_mask import AttentionMask, CausalMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import MentionSpans

NO_TARGET = -100
"""Marks positions without a target."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Network inputs and targets for a clean batch. Every objective is a function to a View.

    Shapes: B sequences, T positions. Only `inputs`, `lengths` and `attention_mask` are required.
    """

    inputs: Tensor
    """(B, T) token ids, or (B, T, D) vectors (patches of an image)."""
    lengths: Tensor
    """(B,) unpadded length of each row."""
    attention_mask: AttentionMask
    """Attention mask of the content stream."""
    targets: Tensor | None = None
    """(B, T) ids to predict at each position, NO_TARGET where nothing is predicted."""
    weights: Tensor | None = None
    """(B, T) weight of each prediction in the loss; 1 if None."""
    positions: Tensor | None = None
    """(B, T) or (B, T, 2) position ids, if they are not 0, 1, 2 …"""
    segments: Tensor | None = None
    """(B, T) segment ids (sentence A and B)."""
    order: Tensor | None = None
    """(B, T) factorisation order: the step at which each position is predicted, if not left to
    right."""
    query_attention_mask: AttentionMask | None = None
    """Attention mask of the query stream, in two-stream attention (XLNet)."""
    clean_positions: Tensor | None = None
    """(B, T) the position in the clean text of each target, -1 where there is none."""
    clean_rows: Tensor | None = None
    """(B, T) the clean row of each position, if rows were rearranged."""
    mentions: Tensor | None = None
    """(B, T) id of the entity mention that covers each position, -1 where none does."""
    spans: MentionSpans | None = None
    """The entity mentions that a memory may look up, if any."""
    memory_spans: Mapping[int, MentionSpans] = field(default_factory=dict)
    """The mentions that each memory may look up, by the layer that it follows, where memories have
    lexicons of their own; `spans` are for all others."""
    labels: Tensor | None = None
    """(B,) a class for the whole row (next sentence or not)."""
    decoder: View | None = None
    """The decoder's view in an encoder-decoder; this one is then the encoder's."""

    @property
    def prediction_view(self) -> View:
        """The view with the targets: the decoder's if there is one."""
        return self if self.decoder is None else self.decoder


def causal_view(batch: Batch) -> View:
    """Causal LM view: inputs at positions 0 … T-2, targets at 1 … T-1."""
    return _token_view(batch, batch.tokens[:, :-1], CausalMask())


def autoencoding_view(batch: Batch) -> View:
    """Autoencoding view: the tokens at positions 1 … T-1 are both inputs and targets."""
    return _token_view(batch, batch.tokens[:, 1:], FullMask())


def _token_view(batch: Batch, inputs: Tensor, attention_mask: AttentionMask) -> View:
    """View with T - 1 inputs and the tokens at positions 1 … T-1 as targets."""
    targets = batch.tokens[:, 1:]
    positions = torch.arange(1, batch.tokens.shape[1], device=targets.device)[None, :]
    padding = positions >= batch.lengths[:, None]
    return View(
        inputs=inputs,
        lengths=(batch.lengths - 1).clamp(min=0),
        attention_mask=attention_mask,
        targets=targets.masked_fill(padding, NO_TARGET),
        clean_positions=positions.masked_fill(padding, -1),
    )
