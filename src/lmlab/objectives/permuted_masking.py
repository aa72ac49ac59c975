"""Permuted masking: masks for what is still to come, tokens for what was predicted (MPNet)."""

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
from lmlab.objectives.permutation_lm import (
    order_ranks,
    predicted_count,
)


class MaskedPermutedLM(MaskedLMObjective):
    """-Σ_{t > c} log p(x_{z_t} | x_{z_<t}, M_{z_>c}) for an even order z (Song et al. 2020).

    The last `rate` of the order (rounded, at least one) is predicted, by queries. Each sees the
    tokens before it in the order, and masks at the positions of its own place and of those after
    it: the whole text's places at every turn, as in use. That is the paper's position compensation;
    BERT's hidden tokens don't see each other, and XLNet's don't see how many are still to come.

    Of the masks, as in BERT, one in ten is a random token and one in ten the token itself.
    The paper hides whole words too, which is left out here: it draws the order of single tokens.

    The view holds the text with masks at its own places, where they are asked, and behind it the
    tokens that were masked, in their order and with the positions they came from. Their content
    sees z_≤t and the masks after it; the text and its masks see one another and none of that.
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
        # Turns among those predicted: 1 … count; 0 for all that is simply shown.
        turn = (order - (order.amax(1) - count)[:, None]).clamp(min=0)
        shown = self.replacement(batch.tokens, turn > 0, generator=generator)
        return self._compensated(batch, shown, order, turn, count)

    def _draw(self, batch: Batch, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """(B, T) turns 1 … n of the places that may be hidden, 0 elsewhere; (B,) how many are."""
        allowed = maskable_positions(batch, self.vocabulary)
        drawn = sample_uniform(allowed.shape, allowed.device, generator=generator)
        before = (~allowed).sum(1, keepdim=True)
        order = (order_ranks(drawn.masked_fill(~allowed, -1.0)) - before + 1).clamp(min=0)
        return order, predicted_count(allowed.sum(1), self.rate)

    def _compensated(
        self, batch: Batch, shown: Tensor, order: Tensor, turn: Tensor, count: Tensor
    ) -> View:
        """The view, given what is shown of the text (B, T), the turns (B, T) of all and of those
        predicted, and their number (B,)."""
        hidden = turn > 0
        rows, places = hidden.nonzero(as_tuple=True)
        slots = batch.lengths[rows] + turn[rows, places] - 1
        room = max(batch.tokens.shape[1], int((batch.lengths + count).max()))

        def beside(values: Tensor, copied: Tensor, filler: int) -> Tensor:
            """(B, room) `values` (B, T), and behind each row's text what is `copied` from it."""
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
        """Masks at all of these places: what the first query of such an order would see."""
        shown = batch.tokens.masked_fill(masked, require_mask_token(self.vocabulary))
        return masked_view(batch, shown, masked)


def _seen(known: Tensor, turn: Tensor, masks: Tensor, content: Tensor) -> ExplicitMask:
    """Who sees whom, where a place knows the tokens of turns up to `known` (B, T).

    Of what it knows it sees the content, of all else that is hidden the masks; and all the text.
    """
    known, turn = known[:, :, None], turn[:, None, :]
    later = (turn > known) | ~masks[:, None, :]
    return ExplicitMask(torch.where(content[:, None, :], turn <= known, later))
