"""Mention masking (EaE, FaE): masked LM plus mention detection, entity linking and fact losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.entity_memory import (
    ANSWER_LOG_PROBS,
    ENTITY_LOG_PROBS,
    FACT_LOG_PROBS,
    MASKED_MENTIONS,
    MENTION_TAGS,
    SUPPORTED_FACTS,
)
from lmlab.core.entity_mentions import NO_ENTITY, MentionSpans, annotated_spans, bio_tags
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, weighted_cross_entropy
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.token_masking import (
    MaskReplacement,
    ensure_one_masked,
    maskable_positions,
    masked_view,
    require_mask_token,
    run_starts,
    shift_right,
)
from lmlab.objectives.objective_interfaces import MaskedLMObjective, sum_losses


class EntityMaskingObjective(MaskedLMObjective):
    """Mention masking: -Σ_{t masked} log p(s_t | visible), plus the memory layers' losses.

    A share `mention_rate` of the annotated mentions is masked whole, always by the mask token, so
    that the memory is queried by the context alone; of the other tokens `rate`, as in BERT (Févry
    et al. 2020, Verga et al. 2020). Added to the MLM loss, each a cross-entropy:

    - mentions: BIO tag of every position (begin, inside, outside), weighted by `rate`, so that all
      positions together weigh about as much as the masked ones;
    - linking, prediction: the entity of each mention, by the memory and by the last layer;
    - facts: a masked mention retrieves a fact that the text supports, or the null fact; answers:
      the entity predicted for it from facts and context.

    A mention without a gold entity counts for the first only. Without annotated mentions, the
    memory detects them, as in inference, and only the MLM loss is trained.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, rate: float = 0.15, mention_rate: float = 0.2
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.rate = rate
        self.mention_rate = mention_rate
        self.replacement = MaskReplacement(vocabulary=vocabulary)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        allowed = maskable_positions(batch, self.vocabulary)
        entities = batch.entities
        entity_ids = torch.full_like(batch.tokens, NO_ENTITY) if entities is None else entities
        mention = allowed & (entity_ids != NO_ENTITY)
        chosen = self._choose(entity_ids, mention, allowed, generator)
        inputs = self.replacement(batch.tokens, chosen, generator=generator)
        inputs = inputs.masked_fill(chosen & mention, require_mask_token(self.vocabulary))
        view = masked_view(batch, inputs, chosen)
        if entities is None:
            return view
        return replace(view, spans=annotated_spans(entities), mentions=entities)

    def _choose(
        self,
        entity_ids: Tensor,
        mention: Tensor,
        allowed: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """(B, T) bool: the masked positions; mentions are masked whole or not at all."""
        previous = torch.cat([torch.full_like(entity_ids[:, :1], NO_ENTITY), entity_ids[:, :-1]], 1)
        starts = ~mention | (entity_ids != previous) | ~shift_right(mention, fill=False)
        uniforms = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        uniforms = uniforms.gather(1, run_starts(starts))
        rates = torch.where(mention, self.mention_rate, self.rate)
        return ensure_one_masked(uniforms.masked_fill(~allowed, 2.0), uniforms < rates, allowed)

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """MLM loss plus memory losses, per masked token."""
        view = self.view(batch, generator=generator)
        hidden = network.hidden(view, state)
        masked = weighted_cross_entropy(view, network.predict(view, hidden))
        parts = {"masked": masked}
        for number, (_, outputs) in enumerate(sorted(hidden.memory_outputs.items())):
            parts |= memory_losses(view, outputs, linking="prediction" if number else "linking")
        if "mentions" in parts:
            mentions = parts["mentions"]
            parts["mentions"] = Loss(mentions.total * self.rate, mentions.count)
        total = torch.stack([part.total for part in parts.values()]).sum()
        return Loss(total, masked.count, parts), hidden.state


def memory_losses(view: View, outputs: Mapping[str, Tensor], *, linking: str) -> dict[str, Loss]:
    """Memory losses of a view with annotated mentions; empty where there are none."""
    if view.spans is None:
        return {}
    losses, has_entity = {}, view.spans.entities != NO_ENTITY
    if MENTION_TAGS in outputs:
        losses["mentions"] = mention_detection_loss(view, view.spans, outputs[MENTION_TAGS])
    if ENTITY_LOG_PROBS in outputs:
        losses[linking] = negative_log_likelihood(
            outputs[ENTITY_LOG_PROBS][has_entity], view.spans.entities[has_entity]
        )
    if FACT_LOG_PROBS in outputs:
        answers, is_supported = (
            view.spans.entities[outputs[MASKED_MENTIONS]],
            outputs[SUPPORTED_FACTS],
        )
        known, has_fact = answers != NO_ENTITY, is_supported.any(-1)
        supported = outputs[FACT_LOG_PROBS][has_fact].masked_fill(
            ~is_supported[has_fact], -torch.inf
        )
        losses["facts"] = sum_losses(-torch.logsumexp(supported, -1))
        losses["answers"] = negative_log_likelihood(
            outputs[ANSWER_LOG_PROBS][known], answers[known]
        )
    return losses


def mention_detection_loss(view: View, spans: MentionSpans, log_probs: Tensor) -> Loss:
    """Cross-entropy of the BIO tags (B, T, 3) over all real positions."""
    tags = bio_tags(spans, *log_probs.shape[:2])
    real = torch.arange(tags.shape[1], device=tags.device) < view.lengths[:, None]
    return negative_log_likelihood(log_probs[real], tags[real])


def negative_log_likelihood(log_probs: Tensor, chosen: Tensor) -> Loss:
    """Negative log-likelihood: minus log-probabilities (N, C) at the targets (N,)."""
    return sum_losses(-log_probs.gather(-1, chosen[:, None]).squeeze(-1))
