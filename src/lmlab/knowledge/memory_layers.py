"""Entity memory (EaE, Févry et al. 2020), fact memory (FaE, Verga et al. 2020); entity softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.entity_memory import (
    ANSWER_LOG_PROBS,
    ENTITY_LOG_PROBS,
    FACT_LOG_PROBS,
    MASKED_MENTIONS,
    MENTION_SPANS,
    MENTION_TAGS,
    SUPPORTED_FACTS,
    HiddenMemory,
    MemoryOutput,
)
from lmlab.core.entity_mentions import NO_ENTITY, MentionSpans, spans_from_bio_tags
from lmlab.core.view import View


class EntityMemory(HiddenMemory):
    """Entity memory: X² = W_b E_m at the start of mention m, else 0; X³ = LayerNorm(X² + X¹).

    With e_j the entity embeddings (`entities`, learned, shared with entity prediction):

        h_m = W_f [x_start ‖ x_end],   α = softmax_j(e_j · h_m),   E_m = Σ_j α_j e_j

    over all N entities in training, and over the `top_k` ones of each mention in inference. If
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
        top_k: int,
        special: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.entities = entities
        self.top_k = top_k
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
        outputs = {
            MENTION_TAGS: tags,
            ENTITY_LOG_PROBS: torch.log_softmax(scores, -1),
            MENTION_SPANS: torch.stack([spans.rows, spans.first, spans.last], 1),
        }
        return MemoryOutput(values=self.norm(values + added), outputs=outputs, spans=spans)

    def detect(self, tags: Tensor, view: View) -> MentionSpans:
        """Mention detection: spans of the likeliest tags (B, T, 3), without special tokens."""
        position = torch.arange(tags.shape[1], device=tags.device)
        allowed = (position >= 1) & (position < view.lengths[:, None])
        for token in self.special:
            allowed = allowed & (view.inputs != token)
        return spans_from_bio_tags(tags.argmax(-1).where(allowed, 0))


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


def top_k_softmax(scores: Tensor, k: int | None) -> Tensor:
    """(M, N) softmax over the `k` highest scores of each row, or over all; 0 elsewhere."""
    if k is None or k >= scores.shape[1]:
        return torch.softmax(scores, -1)
    best = scores.topk(k, -1)
    return torch.zeros_like(scores).scatter(-1, best.indices, torch.softmax(best.values, -1))


ObjectsByFact = Mapping[tuple[int, int], Sequence[int]]
"""Objects by (subject, relation)."""


class FactTable(nn.Module):
    """F facts by id: (subject, relation) and its objects. Data, no parameters.

    The objects are one flat list, as few facts have many: in WordNet one has 661, most have one. It
    is saved with the weights, and resized to what is loaded.
    """

    keys: Tensor
    """(F, 2) subject and relation."""
    objects: Tensor
    """(O,) the objects of all facts, those of one fact consecutive."""
    fact_of_object: Tensor
    """(O,) the fact that each object belongs to."""

    def __init__(self, facts: ObjectsByFact) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(0, 2, dtype=torch.long))
        self.register_buffer("objects", torch.zeros(0, dtype=torch.long))
        self.register_buffer("fact_of_object", torch.zeros(0, dtype=torch.long))
        self.write(facts)

    def __len__(self) -> int:
        return len(self.keys)

    def write(self, facts: ObjectsByFact) -> None:
        """Replace all facts."""
        nonempty = {key: tuple(objects) for key, objects in facts.items() if objects}
        counts = torch.tensor([len(objects) for objects in nonempty.values()], dtype=torch.long)
        flat = [object_id for objects in nonempty.values() for object_id in objects]
        device = self.keys.device
        self.keys = torch.tensor(list(nonempty), dtype=torch.long, device=device).view(-1, 2)
        self.objects = torch.tensor(flat, dtype=torch.long, device=device)
        self.fact_of_object = torch.arange(len(nonempty)).repeat_interleave(counts).to(device)

    def read(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """All facts."""
        objects: list[list[int]] = [[] for _ in range(len(self))]
        for fact, obj in zip(self.fact_of_object.tolist(), self.objects.tolist(), strict=True):
            objects[fact].append(obj)
        keys = ((subject, relation) for subject, relation in self.keys.tolist())
        return dict(zip(keys, map(tuple, objects), strict=True))

    def object_probabilities(self, scores: Tensor) -> Tensor:
        """(Q, O) softmax of the object `scores` (Q, O) among those of the same fact."""
        owners = self.fact_of_object.expand(len(scores), -1)
        floor = scores.new_full((len(scores), len(self)), -torch.inf)
        best = floor.scatter_reduce(1, owners, scores.detach(), "amax").gather(1, owners)
        exponentials = (scores - best).exp()
        sums = exponentials.new_zeros(len(scores), len(self)).scatter_add(1, owners, exponentials)
        return exponentials / sums.gather(1, owners)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("keys", "objects", "fact_of_object"):
            if (loaded := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(loaded, device=self.keys.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class FactMemory(HiddenMemory):
    """Key-value fact memory, queried at each masked mention m.

    With e the entity embeddings, shared with the entity memory, and x the last layer's states:

        a_f = W_a [e_subject ‖ r_relation],   a_∅ learned           fact keys, and the null fact's
        β = softmax_f(a_f · W_v [x_start ‖ x_end])                  attention over facts
        b_f = Σ_o softmax_{o of f}(e_o · W_z [x_start ‖ x_end]) e_o  value: weighted objects
        ĝ = β_∅ g + Σ_f β_f b_f,   g = W_c [x_start ‖ x_end]        λ = β_∅: no fact, so the text
        log p(entity) = log softmax_j(e_j · ĝ)

    In inference only the `top_k` keys count, in training all. ĝ is also added to the hidden
    states of the mention, x + W_o ĝ, so that token predictions use facts too; other positions are
    unchanged. M mentions, Q of them masked by the token `mask`; O objects in all facts. Cost:
    Q · (F · entity width + O).
    """

    def __init__(
        self,
        entities: nn.Embedding,
        relations: int,
        facts: ObjectsByFact,
        width: int,
        *,
        mask: int,
        top_k: int,
    ) -> None:
        super().__init__()
        size = entities.embedding_dim
        self.entities = entities
        self.table = FactTable(facts)
        self.mask = mask
        self.top_k = top_k
        self.relations = nn.Embedding(relations, size)
        self.key = nn.Linear(2 * size, size, bias=False)
        """W_a."""
        self.null = nn.Parameter(torch.zeros(size))
        self.query = nn.Linear(2 * width, size, bias=False)
        """W_v."""
        self.choose = nn.Linear(2 * width, size, bias=False)
        """W_z."""
        self.context = nn.Linear(2 * width, size, bias=False)
        """W_c."""
        self.tell = nn.Linear(size, width, bias=False)
        """W_o."""

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        if view.spans is None:
            return MemoryOutput(values=values)
        spans, vectors = view.spans, self.entities.weight
        ends = span_endpoints(values, spans)
        context = self.context(ends)
        masked = view.inputs[spans.rows, spans.first] == self.mask
        scores = self.query(ends[masked]) @ self.keys().T
        answers = self._answer_vectors(scores, ends[masked], context[masked])
        outputs = {
            ENTITY_LOG_PROBS: torch.log_softmax(context @ vectors.T, -1),
            FACT_LOG_PROBS: torch.log_softmax(scores, -1),
            SUPPORTED_FACTS: self._supported(spans, masked, len(values)),
            ANSWER_LOG_PROBS: torch.log_softmax(answers @ vectors.T, -1),
            MASKED_MENTIONS: masked,
        }
        added = self._scatter(self.tell(answers), spans, masked, values)
        return MemoryOutput(values=values + added, outputs=outputs)

    def keys(self) -> Tensor:
        """(F + 1, D) the key of each fact, the null fact's last."""
        subjects, relations = self.table.keys.unbind(1)
        pairs = torch.cat([self.entities(subjects), self.relations(relations)], -1)
        return torch.cat([self.key(pairs), self.null[None]])

    def _answer_vectors(self, scores: Tensor, ends: Tensor, context: Tensor) -> Tensor:
        """(Q, D) ĝ of each masked mention."""
        weights = top_k_softmax(scores, None if self.training else self.top_k)
        facts, null = weights[:, :-1], weights[:, -1:]
        table, vectors = self.table, self.entities.weight
        object_scores = (self.choose(ends) @ vectors.T)[:, table.objects]
        # (Q, O) weight of each object of each fact, then (Q, N) of each entity.
        shares = facts[:, table.fact_of_object] * table.object_probabilities(object_scores)
        weighted = shares.new_zeros(len(scores), len(vectors)).index_add(1, table.objects, shares)
        return null * context + weighted @ vectors

    def _supported(self, spans: MentionSpans, masked: Tensor, rows: int) -> Tensor:
        """(Q, F + 1) bool: whether the text shows a fact's subject and masks one of its objects.

        Verga et al.'s distant supervision of the retrieved fact. Without one it is the null fact.
        No label where the gold entity is unknown, or where another masked mention might be the
        subject: the paper masks one at a time.
        """
        visible = ~masked & (spans.entities != NO_ENTITY)
        present = torch.zeros(rows, len(self.entities.weight), dtype=torch.bool)
        present = present.to(masked.device)
        present[spans.rows[visible], spans.entities[visible]] = True
        gold, row = spans.entities[masked], spans.rows[masked]
        known = gold != NO_ENTITY
        alone = torch.bincount(row, minlength=rows)[row] == 1
        subject = present[row][:, self.table.keys[:, 0]]
        mention, object_index = (self.table.objects == gold[:, None]).nonzero(as_tuple=True)
        object = torch.zeros_like(subject)
        object[mention, self.table.fact_of_object[object_index]] = True
        facts = subject & object & known[:, None]
        return torch.cat([facts, (known & alone & ~facts.any(1))[:, None]], 1)

    def _scatter(
        self, vectors: Tensor, spans: MentionSpans, masked: Tensor, values: Tensor
    ) -> Tensor:
        """(B, T, W) memory outputs (Q, W) at all positions of each masked mention, 0 elsewhere."""
        rows, first, last = spans.rows[masked], spans.first[masked], spans.last[masked]
        position = torch.arange(values.shape[1], device=values.device)
        mention, positions = ((position >= first[:, None]) & (position <= last[:, None])).nonzero(
            as_tuple=True
        )
        added = torch.zeros_like(values)
        added[rows[mention], positions] = vectors[mention].to(values.dtype)
        return added
