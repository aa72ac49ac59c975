"""KnowBert's objective: masked LM plus entity linking, by a softmax or max-margin loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.entity_mentions import NO_ENTITY, MentionSpans, mention_capture
from lmlab.core.loss import Loss
from lmlab.core.parts import HiddenStates, Network, weighted_cross_entropy
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.entity_lexicon import EntityLexicon
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.token_masking import (
    MaskingStrategy,
    MaskReplacement,
    StaticMasking,
    maskable_positions,
)

LinkingLoss = Callable[[Tensor, Tensor], Tensor]
"""From candidate scores (K, C) of K mentions, -inf where there is no candidate, and the index (K,)
of the gold one, to (K,) losses."""


@dataclass(frozen=True)
class SoftmaxLinkingLoss:
    """Softmax linking loss: -log(exp ψ_g / Σ_k exp ψ_k) per mention (Peters et al. 2019)."""

    def __call__(self, scores: Tensor, gold: Tensor) -> Tensor:
        log_probs = torch.log_softmax(scores, -1)
        return -log_probs.gather(-1, gold[:, None]).squeeze(-1)


@dataclass(frozen=True)
class MarginLinkingLoss:
    """Max-margin linking loss: max(0, γ - ψ_g) + Σ_{k≠g} max(0, γ + ψ_k) per mention.

    Peters et al. 2019. The sum stays outside the first maximum: inside it, a high-scoring gold
    entity would offset high-scoring negatives.
    """

    margin: float = 0.2

    def __call__(self, scores: Tensor, gold: Tensor) -> Tensor:
        gold_scores = scores.gather(-1, gold[:, None])
        # Missing candidates score minus infinity, and cost nothing.
        negatives = (self.margin + scores).clamp(min=0).scatter(-1, gold[:, None], 0.0)
        return (self.margin - gold_scores).clamp(min=0).squeeze(-1) + negatives.sum(-1)


def linking_loss(loss_function: LinkingLoss, scores: Tensor, spans: MentionSpans) -> Loss:
    """Loss over the mentions whose gold entity is among their candidates, and their number."""
    matches = (spans.candidates == spans.entities[:, None]) & (spans.entities != NO_ENTITY)[:, None]
    has_gold = matches.any(-1)
    gold = matches[has_gold].long().argmax(-1) if bool(has_gold.any()) else spans.rows[:0]
    losses = loss_function(scores[has_gold], gold) if len(gold) else scores.new_zeros(0)
    return Loss(losses.sum(), has_gold.sum().to(scores.dtype))


NO_LINKING_STEPS = -1
"""No step of a training has this number, so that the linker is not aligned after it either."""


class EntityLinkingMLM(BERTObjective):
    """KnowBert: -Σ_{t masked} log p(s_t | visible) + Σ_{m gold} L_EL(m) (Peters et al. 2019).

    Mentions are found in the clean text by the lexicon; a mention with a masked token is dropped.
    (The paper keeps it with a [MASK] entity as its candidate, which reveals that the masked word is
    in the lexicon, and where a name of several words begins and ends.) So views are the same in
    training and when blanks are filled. For the first `linking_steps` the training loss is the
    linking loss alone. With several knowledge bases each has a lexicon, mentions and a linking loss
    of its own, which are added.
    """

    prediction_kind = ""  # a teacher would need the mentions

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: MaskingStrategy,
        replacement: MaskReplacement,
        *,
        lexicons: Mapping[int, EntityLexicon],
        linking: LinkingLoss,
        weight: float = 1.0,
        linking_steps: int = 0,
        base_positions: int = 1,
        repeats: StaticMasking | None = None,
    ) -> None:
        """`lexicons` are by the layer after which the entities are inserted; `base_positions`: the
        extra positions of the base, whose texts it takes."""
        super().__init__(vocabulary, choice, replacement, repeats=repeats)
        self.extra_positions = base_positions
        self.lexicons = dict(lexicons)
        self.linking = linking
        self.weight = weight
        self.linking_steps = linking_steps
        self.linking_only = False

    def begin_continued(self) -> None:
        """Training continues from that of another run: no steps for the linking loss alone."""
        self.linking_steps = NO_LINKING_STEPS

    def begin_step(self, step: int) -> None:
        self.linking_only = step < self.linking_steps

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        for lexicon in self.lexicons.values():
            lexicon.setup_tokenizer(tokenizer, unknown=self.vocabulary.unknown)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        view = super().view(batch, generator=generator)
        assert view.targets is not None
        return replace(view, memory_spans=self.find(batch, view.targets != NO_TARGET))

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        return replace(super().fill_view(batch, masked), memory_spans=self.find(batch, masked))

    def find(self, batch: Batch, masked: Tensor) -> dict[int, MentionSpans]:
        """The mentions of a clean batch without any position of `masked` (B, T), by layer."""
        allowed = maskable_positions(batch, self.vocabulary) & ~masked
        return {layer: lexicon.find(batch, allowed) for layer, lexicon in self.lexicons.items()}

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """MLM loss plus linking loss, per masked token."""
        view = self.view(batch, generator=generator)
        hidden = network.hidden(view, state)
        linked = self._linking_loss(view, hidden)
        if self.linking_only and self.training:
            return Loss(linked.total, linked.count, {"linking": linked}), None
        masked = weighted_cross_entropy(view, network.predict(view, hidden))
        total = masked.total + self.weight * linked.total
        return Loss(total, masked.count, {"masked": masked, "linking": linked}), None

    def _linking_loss(self, view: View, hidden: HiddenStates) -> Loss:
        losses = [
            linking_loss(self.linking, hidden.memory_outputs[layer]["scores"], spans)
            for layer, spans in view.memory_spans.items()
        ]
        return Loss(sum_of(loss.total for loss in losses), sum_of(loss.count for loss in losses))

    def capture_internals(self, network: Network, batch: Batch) -> dict[str, Capture]:
        """Candidate weights of each mention of the clean text, for each knowledge base."""
        view = self.clean_view(batch)
        outputs = network.hidden(view).memory_outputs
        return {
            "linked mentions" + (f" after layer {layer}" if len(self.lexicons) > 1 else ""): (
                _link_capture(batch, self.lexicons[layer], spans, outputs[layer]["weights"])
            )
            for layer, spans in view.memory_spans.items()
        }


def _link_capture(
    batch: Batch, lexicon: EntityLexicon, spans: MentionSpans, weights: Tensor
) -> Capture:
    """The candidate weights (M, C) of the mentions, by their first word."""
    entities = lexicon.knowledge.entities
    # Of mentions with the same first word, the longest, which comes last.
    is_longest = torch.ones_like(spans.rows, dtype=torch.bool)
    is_longest[:-1] = (spans.rows.diff() != 0) | (spans.first.diff() != 0)
    positions = torch.stack([spans.rows[is_longest], spans.first[is_longest]], -1)
    return mention_capture(
        batch,
        "entity",
        positions.tolist(),
        _by_entity(spans.candidates[is_longest], weights[is_longest], len(entities)),
        [entity.title or entity.name for entity in entities],
        caption=(
            "The detected mentions, by their first word, and p(entity) of each among its "
            "candidates."
        ),
    )


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """The sum of some numbers, at least one."""
    return torch.stack(list(values)).sum()


def _by_entity(candidates: Tensor, weights: Tensor, entities: int) -> Tensor:
    """(M, N) weights (M, C) of candidates (M, C) scattered to their entities, nan elsewhere."""
    real = candidates != NO_ENTITY
    shares = weights.new_full((len(candidates), entities), torch.nan)
    shares[real.nonzero()[:, 0], candidates[real]] = weights.detach()[real]
    return shares
