"""Masked and permuted language modelling (MPNet), with position compensation."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.masked_language_modelling import masked_view
from lmlab.objectives.masking.token_masking import (
    MaskReplacement,
    maskable_positions,
    require_mask_token,
)
from lmlab.objectives.objective_interfaces import MaskedLMObjective
from lmlab.objectives.permutation_lm import order_ranks, predicted_count


class MaskedPermutedLM(MaskedLMObjective):
    """MPNet: -Σ_{t > c} log p(x_{z_t} | x_{z_<t}, M_{z_>c}), z a random order (Song et al. 2020).

    The last `rate` of the order (rounded, at least one) is predicted by queries. Each sees the
    tokens before it in the order, and masks at its own position and those after it: all positions
    of the text at every step, as in inference. That is the paper's position compensation; BERT's
    masked tokens don't see each other, and XLNet's don't see how many are still to come.

    As in BERT, one mask in ten is a random token and one in ten the original token. The paper also
    masks whole words; here the order is over single tokens.

    The view holds the text with masks at the target positions, and after it the masked tokens, in
    their order and with their original positions. Their content stream sees z_≤t and the masks
    after it; the text and its masks attend to one another and to none of that.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        rate: float = 0.15,
        replacement: MaskReplacement | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.rate = rate
        self.replacement = replacement or MaskReplacement(vocabulary=vocabulary)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        order, count = self._draw(batch, generator)
        # Ranks among the targets: 1 … count; 0 for visible tokens.
        turn = (order - (order.amax(1) - count)[:, None]).clamp(min=0)
        shown = self.replacement(batch.tokens, turn > 0, generator=generator)
        return self._compensated(batch, shown, order, turn, count)

    def _draw(self, batch: Batch, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(B, T) ranks 1 … n of the maskable positions, 0 elsewhere; (B,) number of targets."""
        allowed = maskable_positions(batch, self.vocabulary)
        drawn = sample_uniform(allowed.shape, allowed.device, generator=generator)
        before = (~allowed).sum(1, keepdim=True)
        order = (order_ranks(drawn.masked_fill(~allowed, -1.0)) - before + 1).clamp(min=0)
        return order, predicted_count(allowed.sum(1), self.rate)

    def _compensated(
        self, batch: Batch, shown: Tensor, order: Tensor, turn: Tensor, count: Tensor
    ) -> View:
        """The view, given the visible text (B, T), the ranks (B, T) of all positions and of the
        targets, and the number of targets (B,)."""
        hidden = turn > 0
        rows, places = hidden.nonzero(as_tuple=True)
        slots = batch.lengths[rows] + turn[rows, places] - 1
        room = max(batch.tokens.shape[1], int((batch.lengths + count).max()))

        def beside(values: Tensor, copied: Tensor, filler: int) -> Tensor:
            """(B, room) `values` (B, T), followed in each row by what is `copied` from it."""
            wide = values.new_full((len(values), room), filler)
            wide[:, : values.shape[1]] = values
            wide[rows, slots] = copied[rows, places]
            return wide

        place = torch.arange(batch.tokens.shape[1], device=rows.device).expand_as(batch.tokens)
        nowhere = torch.zeros_like(hidden)
        masks, content = beside(hidden, nowhere, 0), beside(nowhere, hidden, 0)
        turn = beside(turn, turn, 0)
        nothing = torch.full_like(place, NO_TARGET)
        return View(
            inputs=beside(shown, batch.tokens, self.vocabulary.pad),
            lengths=batch.lengths + count,
            positions=beside(place, place, 0),
            order=beside(order, order, 0),
            attention_mask=_seen(turn.where(content, 0), turn, masks, content),
            query_attention_mask=_seen(turn - 1, turn, masks, content),
            targets=beside(batch.tokens.where(hidden, NO_TARGET), nothing, NO_TARGET),
            clean_positions=beside(place.where(hidden, -1), torch.full_like(place, -1), -1),
        )

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """Masks at all of these positions: what the first query of such an order would see."""
        shown = batch.tokens.masked_fill(masked, require_mask_token(self.vocabulary))
        return masked_view(batch, shown, masked)


def _seen(known: Tensor, turn: Tensor, masks: Tensor, content: Tensor) -> ExplicitMask:
    """Attention mask, where a position knows the tokens of ranks up to `known` (B, T).

    It attends to the content of known tokens, to the masks of the others, and to the visible text.
    """
    known, turn = known[:, :, None], turn[:, None, :]
    later = (turn > known) | ~masks[:, None, :]
    return ExplicitMask(torch.where(content[:, None, :], turn <= known, later))
