"""Systems with a memory of entities: what they link and answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.backbones.remembering import RememberingTransformer
from lmlab.core.answers import Answer, Evidence
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.filling import Filling
from lmlab.core.found import ENTITIES, MENTIONS
from lmlab.core.mention_tags import spans_at
from lmlab.core.mentions import Linked, Spans
from lmlab.core.protocols import Pieces
from lmlab.core.view import View
from lmlab.core.vocabulary import MASK
from lmlab.knowledge.knowledge import Knowledge

GAP = re.compile(rf"{re.escape(MASK)}|\[MASK\]")
"""How a question is written: a mask symbol, or several in a row, where the answer belongs."""
EVIDENCE = 3
"""Facts or entities that an answer rests on which are told, the surest."""


class EntityModel(Filling):
    """A masked model that knows entities (EaE): `memory` and `last` are the layers it asks at."""

    backbone: RememberingTransformer

    def __init__(self, *, knowledge: Knowledge, memory: int, last: int, **parts: object) -> None:
        super().__init__(**parts)  # type: ignore[arg-type]
        self.knowledge = knowledge
        self.memory = memory
        self.last = last
        self._pieces: Pieces | None = None

    def meet_tokenizer(self, tokenizer: Pieces) -> None:
        self._pieces = tokenizer

    @torch.no_grad()
    def link(self, batch: Batch) -> list[Linked]:
        """What each mention of a text names, by the last layer; mentions are detected."""
        mentions, log_probs = self._linked(batch)
        best = log_probs.max(-1)
        return [
            Linked(row=row, first=first, last=last, entity=entity, probability=probability)
            for (row, first, last), entity, probability in zip(
                mentions.tolist(), best.indices.tolist(), best.values.exp().tolist(), strict=True
            )
        ]

    def _linked(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(M, 3) the mentions of a text, and (M, N) log p(entity) of each."""
        found = self.hidden(self._plain(batch)).recalled
        return found[self.memory][MENTIONS], found[self.last][ENTITIES]

    @torch.no_grad()
    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The entities that a hidden mention may be: `the capital of France is <mask>`.

        The answer is an entity, whatever the number of mask symbols that stand for its name.
        """
        if not questions:
            return []
        batch = self._batch([self._encode(question) for question in questions])
        found = self._asked(batch)
        count = min(answers, len(self.knowledge.entities))
        best = self._answers(found).topk(count, -1)
        evidence = self._evidence(found)
        return [
            [
                Answer(text=self._title(number), log_prob=log_prob, evidence=rests_on)
                for number, log_prob in zip(numbers, log_probs, strict=True)
            ]
            for numbers, log_probs, rests_on in zip(
                best.indices.tolist(), best.values.tolist(), evidence, strict=True
            )
        ]

    def _asked(self, batch: Batch) -> Found:
        """What the memories find, with the run of mask symbols of each row as a mention."""
        view = self._plain(batch)
        detected = self.hidden(view).recalled[self.memory][MENTIONS]
        hidden = (batch.tokens == needed(self.vocabulary.mask)).long()
        first = hidden.argmax(1)
        last = first + hidden.sum(1) - 1
        rows, start, end = detected.unbind(1)
        apart = (end < first[rows]) | (start > last[rows])
        every = torch.cat([detected[apart], torch.stack([batch_rows(batch), first, last], 1)])
        order = (every[:, 0] * batch.tokens.shape[1] + every[:, 1]).argsort()
        spans = spans_at(*every[order].unbind(1))
        recalled = self.hidden(replace(view, spans=spans)).recalled
        return Found(recalled=recalled, spans=spans, asked=spans.first == first[spans.rows])

    def _answers(self, found: Found) -> Tensor:
        """(B, N) log p(entity) of the hidden mention of each row."""
        return found.recalled[self.last][ENTITIES][found.asked]

    def _evidence(self, found: Found) -> list[tuple[Evidence, ...]]:
        """For each row the entities that the memory gave for its other mentions."""
        probabilities = found.recalled[self.memory][ENTITIES].exp()
        best = probabilities.max(-1)
        rows = int(found.asked.sum())
        evidence: list[list[Evidence]] = [[] for _ in range(rows)]
        for mention in (~found.asked).nonzero()[:, 0].tolist():
            entity = self.knowledge.entities[int(best.indices[mention])]
            evidence[int(found.spans.rows[mention])].append(
                Evidence(
                    name=entity.name,
                    text=entity.description or entity.title,
                    probability=float(best.values[mention]),
                )
            )
        return [tuple(sorted(each, key=lambda e: -e.probability)[:EVIDENCE]) for each in evidence]

    def _encode(self, question: str) -> list[int]:
        """<s>, the ids of a question with one run of mask symbols, </s>."""
        assert self._pieces is not None, "questions need a tokeniser: see meet_tokenizer"
        mask, ids = needed(self.vocabulary.mask), list[int]()
        pieces = GAP.split(question)
        for number, piece in enumerate(pieces):
            ids += [] if number == 0 else [mask]
            # Byte pairs and characters have spaces as part of them; words do not.
            kept = piece if self._pieces.kind == "char" else piece.rstrip()
            ids += self._pieces.encode(kept) if kept.strip() else []
        gaps = [place for place, token in enumerate(ids) if token == mask]
        if not gaps or gaps[-1] - gaps[0] + 1 != len(gaps):
            raise UserError(
                f"a question has {MASK} where its answer belongs, at one place, and {question!r} "
                f"has it at {'none' if not gaps else 'several'}."
            )
        end = [] if self.vocabulary.end is None else [self.vocabulary.end]
        self.check_length(len(ids) + 1 + len(end))
        return [self.vocabulary.opening, *ids, *end]

    def _batch(self, sequences: Sequence[Sequence[int]]) -> Batch:
        return Batch.from_sequences(sequences, pad=self.vocabulary.pad).to(
            next(self.parameters()).device
        )

    def _plain(self, batch: Batch) -> View:
        """The texts as they stand, with the mask symbols that they have."""
        return self.objective.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))

    def _title(self, number: int) -> str:
        entity = self.knowledge.entities[number]
        return entity.title or entity.name

    @torch.no_grad()
    def reveal(self, batch: Batch) -> dict[str, Capture]:
        """Besides what the backbone reveals, what the mentions of the text are linked to."""
        mentions, log_probs = self._linked(batch)
        titles = list(map(self._title, range(len(self.knowledge.entities))))
        capture = of_mentions(
            batch,
            "entity",
            mentions[:, :2].tolist(),
            log_probs.exp(),
            titles,
            reading="The mentions that were found, by their first word, and p(entity) of each.",
        )
        return {**super().reveal(batch), "linked mentions": capture}


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What memories found in questions, each with one hidden mention."""

    recalled: Mapping[int, Mapping[str, Tensor]]
    spans: Spans
    asked: Tensor
    """(M,) bool: the hidden mention of each row."""


def of_mentions(
    batch: Batch,
    axis: str,
    places: Sequence[Sequence[int]],
    shares: Tensor,
    names: Sequence[str],
    *,
    reading: str,
) -> Capture:
    """Shares (M, N) of M mentions as a capture, nothing at other places.

    `places` are the row and the first place of each. Of N the likeliest of some mention are kept;
    a share of nan is one that the mention does not have.
    """
    shares = shares.cpu()
    best = shares.nan_to_num(nan=-1.0).topk(min(EVIDENCE, len(names)), -1)
    kept = best.indices[best.values >= 0].unique()
    values = torch.full((*batch.tokens.shape, len(kept)), torch.nan)
    for (row, place), each in zip(places, shares[:, kept], strict=True):
        values[row, place] = each
    return Capture(
        values=values,
        axes=("batch", "time", axis),
        reading=reading,
        names={axis: tuple(names[number] for number in kept.tolist())},
        bounds=UNIT_INTERVAL,
    )


def needed(mask: int | None) -> int:
    """The mask symbol, without which no such system is built."""
    assert mask is not None
    return mask


def batch_rows(batch: Batch) -> Tensor:
    """(B,) 0, 1, 2 …"""
    return torch.arange(len(batch), device=batch.tokens.device)
