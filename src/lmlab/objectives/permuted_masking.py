"""Masked and permuted LM (MPNet): random order, position compensation by mask tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.noise import sample_uniform
from lmlab.objectives.masking.token_masking import MaskReplacement, maskable_positions
from lmlab.objectives.objective_interfaces import MaskedLMObjective
from lmlab.objectives.permutation_lm import order_ranks, predicted_count


class MaskedPermutedLM(MaskedLMObjective):
    """MPNet: -Σ_{t > c} log p(x_{z_t} | x_{z_<t}, M_{z_>c}), z a random order (Song et al. 2020).

    The last `rate` of the order (rounded, at least one) is predicted by queries. Each sees the
    tokens before it in the order, and masks at its own position and those after it: all positions
    of the text at every step, as in inference. That is the paper's position compensation; BERT's
    masked tokens don't see each other, and XLNet's don't see how many are still to come.

    As in BERT, one mask in ten is a random token and one in ten the original token. The paper also
    masks whole words; here the order is over single tokens. Not `compensated`, no masks are seen,
    as in XLNet: the paper's ablation "- position compensation".

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
        compensated: bool = True,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.rate = rate
        self.compensated = compensated
        self.replacement = replacement or MaskReplacement(vocabulary=vocabulary)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        order, count = self._sample_order(batch, generator)
        # Ranks among the targets: 1 … count; 0 for visible tokens.
        target_ranks = (order - (order.amax(1) - count)[:, None]).clamp(min=0)
        inputs = self.replacement(batch.tokens, target_ranks > 0, generator=generator)
        return self._compensated(batch, inputs, order, target_ranks, count)

    def _sample_order(
        self, batch: Batch, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """(B, T) ranks 1 … n of the maskable positions, 0 elsewhere; (B,) number of targets."""
        allowed = maskable_positions(batch, self.vocabulary)
        uniforms = sample_uniform(allowed.shape, allowed.device, generator=generator)
        excluded = (~allowed).sum(1, keepdim=True)
        order = (order_ranks(uniforms.masked_fill(~allowed, -1.0)) - excluded + 1).clamp(min=0)
        return order, predicted_count(allowed.sum(1), self.rate)

    def _compensated(
        self, batch: Batch, inputs: Tensor, order: Tensor, target_ranks: Tensor, count: Tensor
    ) -> View:
        """The view, given the visible text (B, T), the ranks (B, T) of all positions and of the
        targets, and the number of targets (B,)."""
        masked = target_ranks > 0
        rows, columns = masked.nonzero(as_tuple=True)
        slots = batch.lengths[rows] + target_ranks[rows, columns] - 1
        width = max(batch.tokens.shape[1], int((batch.lengths + count).max()))

        def append_copies(values: Tensor, copied: Tensor, filler: int) -> Tensor:
            """(B, width) `values` (B, T), followed in each row by what is `copied` from it."""
            extended = values.new_full((len(values), width), filler)
            extended[:, : values.shape[1]] = values
            extended[rows, slots] = copied[rows, columns]
            return extended

        positions = torch.arange(batch.tokens.shape[1], device=rows.device).expand_as(batch.tokens)
        no_positions = torch.zeros_like(masked)
        masks, content = (
            append_copies(masked, no_positions, 0),
            append_copies(no_positions, masked, 0),
        )
        target_ranks = append_copies(target_ranks, target_ranks, 0)
        no_targets = torch.full_like(positions, NO_TARGET)
        return View(
            inputs=append_copies(inputs, batch.tokens, self.vocabulary.pad),
            lengths=batch.lengths + count,
            positions=append_copies(positions, positions, 0),
            order=append_copies(order, order, 0),
            attention_mask=self._attention_mask(
                target_ranks.where(content, 0), target_ranks, masks, content
            ),
            query_attention_mask=self._attention_mask(
                target_ranks - 1, target_ranks, masks, content
            ),
            targets=append_copies(batch.tokens.where(masked, NO_TARGET), no_targets, NO_TARGET),
            clean_positions=append_copies(
                positions.where(masked, -1), torch.full_like(positions, -1), -1
            ),
        )

    def _attention_mask(
        self, known: Tensor, target_ranks: Tensor, masks: Tensor, content: Tensor
    ) -> ExplicitMask:
        """Attention mask, where a position knows the tokens of ranks up to `known` (B, T).

        It attends to the content of known tokens, to the masks of the others if compensated, and to
        the visible text.
        """
        known, target_ranks = known[:, :, None], target_ranks[:, None, :]
        others = ~masks[:, None, :].expand(-1, known.shape[1], -1)
        if self.compensated:
            others = others | (target_ranks > known)
        return ExplicitMask(torch.where(content[:, None, :], target_ranks <= known, others))
