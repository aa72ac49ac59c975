"""Entities as Experts, Facts as Experts: masked LMs with entity and fact memories; linking, QA."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.core.answers import Answer, Evidence
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.entity_memory import (
    ANSWER_LOG_PROBS,
    ENTITY_LOG_PROBS,
    FACT_LOG_PROBS,
    MASKED_MENTIONS,
    MENTION_SPANS,
)
from lmlab.core.entity_mentions import (
    MAX_EVIDENCE,
    MentionLink,
    MentionSpans,
    mention_capture,
    unlinked_spans,
)
from lmlab.core.errors import UserError
from lmlab.core.parts import Emission
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import MASK, Vocabulary
from lmlab.data.text_codecs import CHARACTER_KINDS
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.memory_layers import FactMemory
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.entity_masking import EntityMaskingObjective

MASK_RUN = re.compile(rf"{re.escape(MASK)}|\[MASK\]")
"""One or more mask tokens mark the answer in a question."""


class EntitiesAsExperts(MaskedLM):
    """Entities as Experts (Févry et al. 2020): a masked LM with an entity memory.

    `memory` and `last` are the layers that query it.
    """

    backbone: MemoryTransformer

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: MemoryTransformer,
        emission: Emission,
        objective: EntityMaskingObjective,
        knowledge: KnowledgeBase,
        memory: int,
        last: int,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.knowledge = knowledge
        self.memory = memory
        self.last = last
        self._tokenizer: TokenizerProtocol | None = None

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        self._tokenizer = tokenizer

    @torch.no_grad()
    def link(self, batch: Batch) -> list[MentionLink]:
        """Entity linking by the last layer; mentions are detected."""
        mentions, log_probs = self._mentions(batch)
        best = log_probs.max(-1)
        return [
            MentionLink(row=row, first=first, last=last, entity=entity, probability=probability)
            for (row, first, last), entity, probability in zip(
                mentions.tolist(), best.indices.tolist(), best.values.exp().tolist(), strict=True
            )
        ]

    def _mentions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(M, 3) the mentions of a text, and (M, N) log p(entity) of each."""
        outputs = self.hidden(self.objective.clean_view(batch)).memory_outputs
        return outputs[self.memory][MENTION_SPANS], outputs[self.last][ENTITY_LOG_PROBS]

    @torch.no_grad()
    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The most probable entities for a masked mention: `the capital of France is <mask>`.

        The answer is an entity, whatever the number of mask tokens.
        """
        if not questions:
            return []
        rows = [self._encode(question) for question in questions]
        batch = Batch.collate(rows, self.vocabulary.pad).to(next(self.parameters()).device)
        lookup = self._lookup(batch)
        count = min(answers, len(self.knowledge.entities))
        best = self._answer_log_probs(lookup).topk(count, -1)
        evidence = self._evidence(lookup)
        return [
            [
                Answer(text=self._title(number), log_prob=log_prob, evidence=row_evidence)
                for number, log_prob in zip(numbers, log_probs, strict=True)
            ]
            for numbers, log_probs, row_evidence in zip(
                best.indices.tolist(), best.values.tolist(), evidence, strict=True
            )
        ]

    def _lookup(self, batch: Batch) -> MemoryLookup:
        """The memory lookups, with the run of mask tokens of each row as a mention."""
        view = self.objective.clean_view(batch)
        detected = self.hidden(view).memory_outputs[self.memory][MENTION_SPANS]
        is_mask = (batch.tokens == require_mask_id(self.vocabulary.mask)).long()
        first = is_mask.argmax(1)
        last = first + is_mask.sum(1) - 1
        rows, start, end = detected.unbind(1)
        other = (end < first[rows]) | (start > last[rows])
        mentions = torch.cat([detected[other], torch.stack([row_indices(batch), first, last], 1)])
        order = (mentions[:, 0] * batch.tokens.shape[1] + mentions[:, 1]).argsort()
        spans = unlinked_spans(*mentions[order].unbind(1))
        outputs = self.hidden(replace(view, spans=spans)).memory_outputs
        return MemoryLookup(
            memory_outputs=outputs, spans=spans, is_masked_mention=spans.first == first[spans.rows]
        )

    def _answer_log_probs(self, lookup: MemoryLookup) -> Tensor:
        """(B, N) log p(entity) of the masked mention of each row."""
        return lookup.memory_outputs[self.last][ENTITY_LOG_PROBS][lookup.is_masked_mention]

    def _evidence(self, lookup: MemoryLookup) -> list[tuple[Evidence, ...]]:
        """For each row the entities retrieved for its other mentions."""
        probabilities = lookup.memory_outputs[self.memory][ENTITY_LOG_PROBS].exp()
        best = probabilities.max(-1)
        rows = int(lookup.is_masked_mention.sum())
        evidence: list[list[Evidence]] = [[] for _ in range(rows)]
        for mention in (~lookup.is_masked_mention).nonzero()[:, 0].tolist():
            entity = self.knowledge.entities[int(best.indices[mention])]
            evidence[int(lookup.spans.rows[mention])].append(
                Evidence(
                    name=entity.name,
                    text=entity.description or entity.title,
                    probability=float(best.values[mention]),
                )
            )
        return [
            tuple(sorted(items, key=lambda e: -e.probability)[:MAX_EVIDENCE]) for items in evidence
        ]

    def _encode(self, question: str) -> list[int]:
        """<s>, the ids of a question with one run of mask tokens, </s>."""
        assert self._tokenizer is not None, "questions need a tokenizer: see setup_tokenizer"
        mask, ids = require_mask_id(self.vocabulary.mask), list[int]()
        parts = MASK_RUN.split(question)
        for number, part in enumerate(parts):
            ids += [] if number == 0 else [mask]
            # Byte pairs and characters include spaces; words do not.
            text = part if self._tokenizer.kind in CHARACTER_KINDS else part.rstrip()
            ids += self._tokenizer.encode(text) if text.strip() else []
        mask_positions = [position for position, token in enumerate(ids) if token == mask]
        if not mask_positions or mask_positions[-1] - mask_positions[0] + 1 != len(mask_positions):
            raise UserError(
                f"a question must have exactly one {MASK}, where its answer belongs; "
                f"{question!r} has {('none' if not mask_positions else 'several')}."
            )
        end = [] if self.vocabulary.end is None else [self.vocabulary.end]
        self.check_length(len(ids) + 1 + len(end))
        return [self.vocabulary.bos, *ids, *end]

    def _title(self, number: int) -> str:
        entity = self.knowledge.entities[number]
        return entity.title or entity.name

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The backbone's internals, and the entity links of the text's mentions."""
        mentions, log_probs = self._mentions(batch)
        titles = list(map(self._title, range(len(self.knowledge.entities))))
        capture = mention_capture(
            batch,
            "entity",
            mentions[:, :2].tolist(),
            log_probs.exp(),
            titles,
            caption="The detected mentions, by their first word, and p(entity) of each.",
        )
        return {**super().capture_internals(batch), "linked mentions": capture}


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryLookup:
    """Memory lookups of questions, each with one masked mention."""

    memory_outputs: Mapping[int, Mapping[str, Tensor]]
    spans: MentionSpans
    is_masked_mention: Tensor
    """(M,) bool: the masked mention of each row."""


def require_mask_id(mask: int | None) -> int:
    """The mask token, which these models require."""
    assert mask is not None
    return mask


def row_indices(batch: Batch) -> Tensor:
    """(B,) 0, 1, 2 …"""
    return torch.arange(len(batch), device=batch.tokens.device)


NamedFact = tuple[str, str, str]
"""Subject, relation and object by their names."""
NO_FACT = "no fact"
"""The name of the null fact."""


class FactsAsExperts(EntitiesAsExperts):
    """Facts as Experts (Verga et al. 2020): an entity model with an editable fact memory."""

    @property
    def fact_memory(self) -> FactMemory:
        memory = self.backbone.memories[str(self.last)]
        assert isinstance(memory, FactMemory)
        return memory

    def facts(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The objects of each (subject, relation) in the memory, by name."""
        entities, relations = self.knowledge.entities, self.knowledge.relations
        return {
            (entities[subject].name, relations[relation]): tuple(
                entities[object_id].name for object_id in objects
            )
            for (subject, relation), objects in self.fact_memory.table.read().items()
        }

    def edit(self, subject: str, relation: str, objects: Sequence[str]) -> None:
        """Set the objects of a subject's relation; none deletes the fact.

        Entities and relations must be those of training, since their vectors are learned. Needs no
        training. Saved with the weights.
        """
        self._set_facts({(subject, relation): objects}, self.fact_memory.table.read())

    def replace_facts(self, knowledge: KnowledgeBase) -> None:
        """Replace all facts by those of `knowledge`, matched by name."""
        names = knowledge.entities
        facts = {
            (names[subject].name, knowledge.relations[relation]): [names[o].name for o in objects]
            for (subject, relation), objects in knowledge.objects.items()
        }
        self._set_facts(facts, {})

    def with_facts(
        self, edits: Sequence[NamedFact], knowledge: KnowledgeBase | None = None
    ) -> Self:
        """A copy, weights included, with the facts of `knowledge` instead of its own, then edited.

        An edit (subject, relation, object) replaces what the memory has for that subject and
        relation; edits with equal subject and relation give several objects.
        """
        other = copy.deepcopy(self)
        if knowledge is not None:
            other.replace_facts(knowledge)
        objects: dict[tuple[str, str], list[str]] = {}
        for subject, relation, object_name in edits:
            objects.setdefault((subject, relation), []).append(object_name)
        for (subject, relation), names in objects.items():
            other.edit(subject, relation, names)
        return other

    def _set_facts(
        self,
        facts: Mapping[tuple[str, str], Sequence[str]],
        current: dict[tuple[int, int], tuple[int, ...]],
    ) -> None:
        knowledge, updated = self.knowledge, dict(current)
        for (subject, relation), objects in facts.items():
            assert not isinstance(objects, str), "objects are several names"
            key = knowledge.find(subject), knowledge.relation(relation)
            updated[key] = tuple(dict.fromkeys(map(knowledge.find, objects)))
        self.fact_memory.table.write(updated)

    def _answer_log_probs(self, lookup: MemoryLookup) -> Tensor:
        return self._at_masked_mentions(lookup, ANSWER_LOG_PROBS)

    def _evidence(self, lookup: MemoryLookup) -> list[tuple[Evidence, ...]]:
        """For each row the facts retrieved for its masked mention."""
        facts, texts = self._fact_log_probs(lookup).exp(), self._fact_descriptions()
        best = facts.topk(min(MAX_EVIDENCE, facts.shape[1]), -1)
        return [
            tuple(
                Evidence(name=texts[number][0], text=texts[number][1], probability=probability)
                for number, probability in zip(numbers, probabilities, strict=True)
            )
            for numbers, probabilities in zip(
                best.indices.tolist(), best.values.tolist(), strict=True
            )
        ]

    def _fact_log_probs(self, lookup: MemoryLookup) -> Tensor:
        """(B, F + 1) log p(fact) of the masked mention of each row."""
        return self._at_masked_mentions(lookup, FACT_LOG_PROBS)

    def _at_masked_mentions(self, lookup: MemoryLookup, name: str) -> Tensor:
        outputs = lookup.memory_outputs[self.last]
        return outputs[name][lookup.is_masked_mention[outputs[MASKED_MENTIONS]]]

    def _fact_descriptions(self) -> list[tuple[str, str]]:
        """Each fact of the memory as `subject, relation` and its objects, the null fact last."""
        entities, relations = self.knowledge.entities, self.knowledge.relations
        descriptions = [
            (
                f"{entities[subject].name}, {relations[relation]}",
                ", ".join(map(self._title, objects)),
            )
            for (subject, relation), objects in self.fact_memory.table.read().items()
        ]
        return [*descriptions, (NO_FACT, "")]

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Also the facts retrieved for each mention of the text when it is masked."""
        labels = [f"{name}: {text}" if text else name for name, text in self._fact_descriptions()]
        mask, mentions, probs = (
            require_mask_id(self.vocabulary.mask),
            [],
            [torch.zeros(0, len(labels))],
        )
        for row, first, last in self._mentions(batch)[0].tolist():
            tokens = batch.tokens[row : row + 1].clone()
            tokens[0, first : last + 1] = mask
            # Skip if another position is already masked: this mention is not the query.
            if int((tokens == mask).sum()) == last - first + 1:
                query = replace(batch.select([row]), tokens=tokens, entities=None)
                mentions.append([row, first])
                probs.append(self._fact_log_probs(self._lookup(query)).exp().cpu())
        capture = mention_capture(
            batch,
            "fact",
            mentions,
            torch.cat(probs),
            labels,
            caption="The facts that each masked mention retrieves, and p(fact) of each.",
        )
        return {**super().capture_internals(batch), "facts looked up": capture}
