"""Systems with a memory of facts: what they look up, and how their facts are changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from lmlab.core.answers import Evidence
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.found import ANSWERS, ASKED, FACTS
from lmlab.knowledge.entity_models import EVIDENCE, EntityModel, Found, needed, of_mentions
from lmlab.knowledge.fact_memory import FactMemory
from lmlab.knowledge.knowledge import Knowledge

Fact = tuple[str, str, str]
"""Subject, relation and object by their names."""
NO_FACT = "no fact"
"""What the null fact is called where it is told."""


class FactModel(EntityModel):
    """An entity model that also looks facts up (FaE). Its facts can be changed at any time."""

    @property
    def fact_memory(self) -> FactMemory:
        memory = self.backbone.memories[str(self.last)]
        assert isinstance(memory, FactMemory)
        return memory

    def facts(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The objects of each (subject, relation) that the memory holds now, by their names."""
        entities, relations = self.knowledge.entities, self.knowledge.relations
        return {
            (entities[subject].name, relations[relation]): tuple(
                entities[each].name for each in objects
            )
            for (subject, relation), objects in self.fact_memory.table.read().items()
        }

    def edit(self, subject: str, relation: str, objects: Sequence[str]) -> None:
        """Let these be the objects of a subject's relation from now on; none to forget it.

        Entities and relations must be those that it was trained with, since they have learnt
        vectors. Nothing is trained. Saved with the weights.
        """
        self._write({(subject, relation): objects}, self.fact_memory.table.read())

    def replace_facts(self, knowledge: Knowledge) -> None:
        """Let the facts of some knowledge be all that it knows, by the names of their parts."""
        names = knowledge.entities
        facts = {
            (names[subject].name, knowledge.relations[relation]): [names[o].name for o in objects]
            for (subject, relation), objects in knowledge.objects.items()
        }
        self._write(facts, {})

    def with_facts(self, edits: Sequence[Fact], knowledge: Knowledge | None = None) -> Self:
        """A copy, weights and all, with the facts of `knowledge` for its own, then the edits.

        An edit (subject, relation, object) takes the place of what the memory has of that subject
        and relation; edits of the same ones are several objects.
        """
        other = copy.deepcopy(self)
        if knowledge is not None:
            other.replace_facts(knowledge)
        objects: dict[tuple[str, str], list[str]] = {}
        for subject, relation, each in edits:
            objects.setdefault((subject, relation), []).append(each)
        for (subject, relation), named in objects.items():
            other.edit(subject, relation, named)
        return other

    def _write(
        self,
        facts: Mapping[tuple[str, str], Sequence[str]],
        before: dict[tuple[int, int], tuple[int, ...]],
    ) -> None:
        known, after = self.knowledge, dict(before)
        for (subject, relation), objects in facts.items():
            assert not isinstance(objects, str), "objects are several names"
            key = known.find(subject), known.relation(relation)
            after[key] = tuple(dict.fromkeys(map(known.find, objects)))
        self.fact_memory.table.write(after)

    def _answers(self, found: Found) -> Tensor:
        looked_up = found.recalled[self.last]
        return looked_up[ANSWERS][found.asked[looked_up[ASKED]]]

    def _evidence(self, found: Found) -> list[tuple[Evidence, ...]]:
        """For each row the facts that its hidden mention looked up."""
        facts, told = self._facts(found).exp(), self._told()
        best = facts.topk(min(EVIDENCE, facts.shape[1]), -1)
        return [
            tuple(
                Evidence(name=told[number][0], text=told[number][1], probability=probability)
                for number, probability in zip(numbers, probabilities, strict=True)
            )
            for numbers, probabilities in zip(
                best.indices.tolist(), best.values.tolist(), strict=True
            )
        ]

    def _facts(self, found: Found) -> Tensor:
        """(B, F + 1) log p(fact) of the hidden mention of each row."""
        looked_up = found.recalled[self.last]
        return looked_up[FACTS][found.asked[looked_up[ASKED]]]

    def _told(self) -> list[tuple[str, str]]:
        """Each fact of the memory as `subject, relation` and its objects, the null fact last."""
        entities, relations = self.knowledge.entities, self.knowledge.relations
        told = [
            (
                f"{entities[subject].name}, {relations[relation]}",
                ", ".join(map(self._title, objects)),
            )
            for (subject, relation), objects in self.fact_memory.table.read().items()
        ]
        return [*told, (NO_FACT, "")]

    @torch.no_grad()
    def reveal(self, batch: Batch) -> dict[str, Capture]:
        """Besides, the facts that each mention of the text looks up where it is hidden."""
        told = [f"{name}: {text}" if text else name for name, text in self._told()]
        mask, places, found = needed(self.vocabulary.mask), [], [torch.zeros(0, len(told))]
        for row, first, last in self._linked(batch)[0].tolist():
            tokens = batch.tokens[row : row + 1].clone()
            tokens[0, first : last + 1] = mask
            # Where another place is hidden already, this one is not what is asked.
            if int((tokens == mask).sum()) == last - first + 1:
                one = replace(batch.select([row]), tokens=tokens, entities=None)
                places.append([row, first])
                found.append(self._facts(self._asked(one)).exp().cpu())
        capture = of_mentions(
            batch,
            "fact",
            places,
            torch.cat(found),
            told,
            reading="The facts that each mention looks up where it is hidden, and p(fact) of each.",
        )
        return {**super().reveal(batch), "facts looked up": capture}
