"""Several knowledge bases as one with consecutive entity ids, and its parts (KnowBert-W+W)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.entity_mentions import NO_ENTITY
from lmlab.core.errors import UserError
from lmlab.knowledge.knowledge_base import Fact, KnowledgeBase


@dataclass(frozen=True, kw_only=True)
class KnowledgePart:
    """One of the knowledge bases that were joined, with entity ids of its own."""

    knowledge: KnowledgeBase
    first: int = 0
    """The id of its first entity in the joined knowledge base."""

    def own_ids(self, entities: Tensor) -> Tensor:
        """Ids in the joined knowledge base as its own; NO_ENTITY for entities of other parts."""
        own = entities - self.first
        inside = (own >= 0) & (own < len(self.knowledge.entities))
        return own.masked_fill(~inside, NO_ENTITY)

    def joined_ids(self, entities: Tensor) -> Tensor:
        """Its own ids as those in the joined knowledge base."""
        return torch.where(entities == NO_ENTITY, NO_ENTITY, entities + self.first)


def join_knowledge(bases: Sequence[KnowledgeBase]) -> KnowledgeBase:
    """The entities, aliases and facts of several knowledge bases, whose names must differ."""
    if len(bases) == 1:
        return bases[0]
    counts = Counter(entity.name for base in bases for entity in base.entities)
    if repeated := next((name for name, count in counts.items() if count > 1), None):
        raise UserError(
            f"two of the knowledge bases have an entity called {repeated!r}; rename one of them."
        )
    relations = tuple(dict.fromkeys(name for base in bases for name in base.relations))
    joined = KnowledgeBase(
        entities=tuple(entity for base in bases for entity in base.entities),
        relations=relations,
        sources=tuple(len(base.entities) for base in bases),
    )
    starts = [part.first for part in _parts_of(joined)]
    return replace(
        joined,
        aliases=tuple(
            replace(alias, entity=alias.entity + start)
            for base, start in zip(bases, starts, strict=True)
            for alias in base.aliases
        ),
        facts=tuple(
            Fact(
                fact.subject + start,
                relations.index(base.relations[fact.relation]),
                fact.object + start,
            )
            for base, start in zip(bases, starts, strict=True)
            for fact in base.facts
        ),
    )


def split_knowledge(knowledge: KnowledgeBase) -> list[KnowledgePart]:
    """The knowledge bases that were joined; of a single one itself."""
    if not knowledge.sources:
        return [KnowledgePart(knowledge=knowledge)]
    return [_with_content(part, knowledge) for part in _parts_of(knowledge)]


def _parts_of(knowledge: KnowledgeBase) -> list[KnowledgePart]:
    """The parts with their entities alone."""
    parts, first = [], 0
    for count in knowledge.sources:
        entities = knowledge.entities[first : first + count]
        base = KnowledgeBase(entities=entities, relations=knowledge.relations)
        parts.append(KnowledgePart(knowledge=base, first=first))
        first += count
    return parts


def _with_content(part: KnowledgePart, joined: KnowledgeBase) -> KnowledgePart:
    """The part with its aliases and facts."""
    own = range(part.first, part.first + len(part.knowledge.entities))
    aliases = tuple(
        replace(alias, entity=alias.entity - part.first)
        for alias in joined.aliases
        if alias.entity in own
    )
    facts = tuple(
        Fact(fact.subject - part.first, fact.relation, fact.object - part.first)
        for fact in joined.facts
        if fact.subject in own
    )
    return replace(part, knowledge=replace(part.knowledge, aliases=aliases, facts=facts))
