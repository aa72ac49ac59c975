"""Entity memory layer (Févry et al. 2020, Entities as Experts)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lmlab.core.entity_mentions import MentionSpans, spans_from_bio_tags
from lmlab.core.hidden_memory import (
    ENTITY_LOG_PROBS,
    MENTION_SPANS,
    MENTION_TAGS,
    HiddenMemory,
    MemoryOutput,
)
from lmlab.core.view import View


class EntityMemory(HiddenMemory):
    """Entity memory: X² = W_b E_m at the start of mention m, else 0; X³ = LayerNorm(X² + X¹).

    With e_j the entity embeddings (`entities`, learned, shared with entity prediction):

        h_m = W_f [x_start ‖ x_end],   α = softmax_j(e_j · h_m),   E_m = Σ_j α_j e_j

    over all N entities in training, and over the `nearest` ones of each mention in inference. If
    the view has no mentions, those detected by its own BIO tagger are used. At other positions X²
    is zero, as in the paper: x_i added to X¹ would double it. Values (B, T, W), M mentions; cost M
    · N · entity width.
    """

    def __init__(
        self,
        entities: nn.Embedding,
        width: int,
        *,
        norm: nn.Module,
        nearest: int,
        special: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.entities = entities
        self.top_k = nearest
        self.special = tuple(special)
        """Ids of special tokens that are no part of any mention (start, end, padding)."""
        self.tagging = nn.Linear(width, 3)
        self.ask = nn.Linear(2 * width, entities.embedding_dim, bias=False)
        """W_f."""
        self.tell = nn.Linear(entities.embedding_dim, width, bias=False)
        """W_b."""
        self.norm = norm

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        tags = torch.log_softmax(self.tagging(values), -1)
        spans = self.detect(tags, view) if view.spans is None else view.spans
        scores = self.ask(span_endpoints(values, spans)) @ self.entities.weight.T
        weights = top_k_softmax(scores, None if self.training else self.top_k)
        added = torch.zeros_like(values)
        added[spans.rows, spans.first] = self.tell(weights @ self.entities.weight).to(values.dtype)
        found = {
            MENTION_TAGS: tags,
            ENTITY_LOG_PROBS: torch.log_softmax(scores, -1),
            MENTION_SPANS: torch.stack([spans.rows, spans.first, spans.last], 1),
        }
        return MemoryOutput(values=self.norm(values + added), outputs=found, spans=spans)

    def detect(self, tags: Tensor, view: View) -> MentionSpans:
        """Mention detection: spans of the likeliest tags (B, T, 3), without special tokens."""
        place = torch.arange(tags.shape[1], device=tags.device)
        real = (place >= 1) & (place < view.lengths[:, None])
        for token in self.special:
            real = real & (view.inputs != token)
        return spans_from_bio_tags(tags.argmax(-1).where(real, 0))


class EntityPrediction(HiddenMemory):
    """Entity prediction: log softmax_j(e_j · W [x_start ‖ x_end]) from the last layer.

    EaE's EntityPred. It leaves the hidden states unchanged.
    """

    def __init__(self, entities: nn.Embedding, width: int) -> None:
        super().__init__()
        self.entities = entities
        self.ask = nn.Linear(2 * width, entities.embedding_dim, bias=False)

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        if view.spans is None:
            return MemoryOutput(values=values)
        scores = self.ask(span_endpoints(values, view.spans)) @ self.entities.weight.T
        return MemoryOutput(
            values=values, outputs={ENTITY_LOG_PROBS: torch.log_softmax(scores, -1)}
        )


def span_endpoints(values: Tensor, spans: MentionSpans) -> Tensor:
    """(M, 2W) hidden states of each mention's first and last position, concatenated."""
    return torch.cat([values[spans.rows, spans.first], values[spans.rows, spans.last]], -1)


def top_k_softmax(scores: Tensor, nearest: int | None) -> Tensor:
    """(M, N) softmax over the `nearest` highest scores of each row, or over all; 0 elsewhere."""
    if nearest is None or nearest >= scores.shape[1]:
        return torch.softmax(scores, -1)
    best = scores.topk(nearest, -1)
    return torch.zeros_like(scores).scatter(-1, best.indices, torch.softmax(best.values, -1))
