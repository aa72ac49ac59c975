"""A memory of facts after the last layer (Verga et al. 2020, Facts as Experts)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.found import ANSWERS, ASKED, ENTITIES, FACTS, SUPPORTED
from lmlab.core.memory import HiddenMemory, Recalled
from lmlab.core.mentions import NO_ENTITY, Spans
from lmlab.core.view import View
from lmlab.knowledge.entity_memory import ends_of, weights_of

Facts = Mapping[tuple[int, int], Sequence[int]]
"""Objects by (subject, relation)."""


class FactTable(nn.Module):
    """F facts by number: (subject, relation) and its objects. Data, no parameters.

    It is saved with the weights, and takes the size of what is loaded.
    """

    keys: Tensor
    """(F, 2) subject and relation."""
    objects: Tensor
    """(F, O) the objects of each, NO_ENTITY where there are fewer."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(0, 2, dtype=torch.long))
        self.register_buffer("objects", torch.zeros(0, 1, dtype=torch.long))
        self.write(facts)

    def __len__(self) -> int:
        return len(self.keys)

    def write(self, facts: Facts) -> None:
        """Let these be all facts, from now on."""
        kept = {key: tuple(objects) for key, objects in facts.items() if objects}
        most = max((len(objects) for objects in kept.values()), default=1)
        rows = [[*objects, *[NO_ENTITY] * (most - len(objects))] for objects in kept.values()]
        device = self.keys.device
        self.keys = torch.tensor(list(kept), dtype=torch.long, device=device).view(-1, 2)
        self.objects = torch.tensor(rows, dtype=torch.long, device=device).view(-1, most)

    def read(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """All facts."""
        keys, objects = self.keys.tolist(), self.objects.tolist()
        return {
            (subject, relation): tuple(each for each in row if each != NO_ENTITY)
            for (subject, relation), row in zip(keys, objects, strict=True)
        }

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("keys", "objects"):
            if (loaded := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(loaded, device=self.keys.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class FactMemory(HiddenMemory):
    """What is known of a hidden mention m, looked up by the place where it stands.

    With e the entities' vectors, shared with the memory of entities, and x the last layer's:

        a_f = W_a [e_subject ‖ r_relation],   a_∅ learnt            the key of a fact, the null one
        β = softmax_f(a_f · W_v [x_start ‖ x_end])                  which facts
        b_f = Σ_o softmax_{o of f}(e_o · W_z [x_start ‖ x_end]) e_o  the value: objects, weighed
        ĝ = β_∅ g + Σ_f β_f b_f,   g = W_c [x_start ‖ x_end]        λ = β_∅: no fact, so the text
        log p(entity) = log softmax_j(e_j · ĝ)

    Only facts of the `nearest` keys count in use, all in training. ĝ also goes back to the hidden
    states of the mention, x + W_o ĝ, so that words come from facts too; at other places nothing is
    changed. M mentions, Q of them hidden behind the symbol `mask`; cost Q · F · (entity width +
    objects of a fact).
    """

    def __init__(
        self,
        entities: nn.Embedding,
        relations: int,
        facts: Facts,
        width: int,
        *,
        mask: int,
        nearest: int,
    ) -> None:
        super().__init__()
        size = entities.embedding_dim
        self.entities = entities
        self.table = FactTable(facts)
        self.mask = mask
        self.nearest = nearest
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

    def forward(self, values: Tensor, view: View) -> Recalled:
        if view.spans is None:
            return Recalled(values=values)
        spans, vectors = view.spans, self.entities.weight
        ends = ends_of(values, spans)
        context = self.context(ends)
        asked = view.inputs[spans.rows, spans.first] == self.mask
        scores = self.query(ends[asked]) @ self.keys().T
        mixed = self._mix(scores, ends[asked], context[asked])
        found = {
            ENTITIES: torch.log_softmax(context @ vectors.T, -1),
            FACTS: torch.log_softmax(scores, -1),
            SUPPORTED: self._supported(spans, asked, len(values)),
            ANSWERS: torch.log_softmax(mixed @ vectors.T, -1),
            ASKED: asked,
        }
        added = self._spread(self.tell(mixed), spans, asked, values)
        return Recalled(values=values + added, found=found)

    def keys(self) -> Tensor:
        """(F + 1, D) the key of each fact, the null fact's last."""
        subjects, relations = self.table.keys.unbind(1)
        pairs = torch.cat([self.entities(subjects), self.relations(relations)], -1)
        return torch.cat([self.key(pairs), self.null[None]])

    def _mix(self, scores: Tensor, ends: Tensor, context: Tensor) -> Tensor:
        """(Q, D) ĝ of each hidden mention."""
        weights = weights_of(scores, None if self.training else self.nearest)
        facts, null = weights[:, :-1], weights[:, -1:]
        objects, vectors = self.table.objects, self.entities.weight
        liked = (self.choose(ends) @ vectors.T)[:, objects.clamp(min=0)]
        liked = liked.masked_fill(objects == NO_ENTITY, -torch.inf)
        # (Q, F, O) how much of the answer each object of each fact is, and then (Q, N) each entity.
        shares = facts[..., None] * torch.softmax(liked, -1)
        flat = objects.clamp(min=0).flatten().expand(len(scores), -1)
        each = torch.zeros(len(scores), len(vectors), dtype=shares.dtype, device=shares.device)
        return null * context + each.scatter_add(1, flat, shares.flatten(1)) @ vectors

    def _supported(self, spans: Spans, asked: Tensor, rows: int) -> Tensor:
        """(Q, F + 1) bool: whether the text shows a fact's subject and hides one of its objects.

        So Verga et al. know which fact a sentence speaks of, though nobody tells them. Where there
        is none it is the null fact. Nothing is right where no entity is told, nor where another
        hidden mention might be the subject: the paper hides one at a time.
        """
        shown = ~asked & (spans.entities != NO_ENTITY)
        present = torch.zeros(rows, len(self.entities.weight), dtype=torch.bool)
        present = present.to(asked.device)
        present[spans.rows[shown], spans.entities[shown]] = True
        hidden, row = spans.entities[asked], spans.rows[asked]
        told = hidden != NO_ENTITY
        alone = torch.bincount(row, minlength=rows)[row] == 1
        subject = present[row][:, self.table.keys[:, 0]]
        object = (self.table.objects == hidden[:, None, None]).any(-1)
        facts = subject & object & told[:, None]
        return torch.cat([facts, (told & alone & ~facts.any(1))[:, None]], 1)

    def _spread(self, told: Tensor, spans: Spans, asked: Tensor, values: Tensor) -> Tensor:
        """(B, T, W) what was found (Q, W) at all places of each hidden mention, 0 elsewhere."""
        rows, first, last = spans.rows[asked], spans.first[asked], spans.last[asked]
        place = torch.arange(values.shape[1], device=values.device)
        which, places = ((place >= first[:, None]) & (place <= last[:, None])).nonzero(
            as_tuple=True
        )
        added = torch.zeros_like(values)
        added[rows[which], places] = told[which].to(values.dtype)
        return added
