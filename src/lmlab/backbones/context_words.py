"""Context words of each position, as ids: the input of word2vec (CBOW, skip-gram)."""

from __future__ import annotations

from typing import ClassVar

import torch

from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import NO_TOKEN


class ContextWords(Backbone):
    """The ids of the inputs visible to each position, in reading order, then `NO_TOKEN`.

    Inputs (B, T), values (B, T, M) int64, M the largest number visible, at least 1. It has no
    parameters: the emission embeds the ids. Cost B · T² for the order.
    """

    output_kind: ClassVar[str] = "contexts"
    supported_masks: ClassVar[tuple[type, ...]] = (ExplicitMask,)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.width = most

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        seen = view.attention_mask.mask(view.lengths, view.inputs.shape[1])
        most = max(1, int(seen.sum(-1).max())) if seen.numel() else 1
        # Visible positions first, each group in reading order: a stable sort of two values.
        order = torch.sort((~seen).byte(), dim=-1, stable=True).indices[..., :most]
        ids = view.inputs[:, None, :].expand(seen.shape).gather(-1, order)
        return HiddenStates(values=ids.masked_fill(~seen.gather(-1, order), NO_TOKEN))
