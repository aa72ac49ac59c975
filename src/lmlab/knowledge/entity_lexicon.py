"""Mention candidates by alias matching, with entity priors (KnowBert's candidate generator)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import NO_ENTITY, MentionSpans, annotated_spans
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.knowledge.joined_knowledge import KnowledgePart
from lmlab.knowledge.knowledge_base import KnowledgeBase, batch_encode


class WordStartFinder(Protocol):
    """Knows where words begin, after `setup_tokenizer`."""

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None: ...

    def starts(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) bool: word starts among the positions `allowed` (B, T)."""
        ...


class EntityLexicon:
    """Mention detection by the aliases of a knowledge base, with candidates and priors.

        p(entity | words) = count(words, entity) / Σ count(words, ·)

    Of each alias the `max_candidates` entities with the largest counts are candidates, in
    descending order, and their priors sum to one. Aliases are compared as tokens at word
    boundaries; every match is a mention, also inside another, as in Peters et al. 2019: [Purple
    [Rain]]. Masked tokens belong to no mention, so that neither candidates nor the mention itself
    leak what is masked. An alias with a token unknown to the tokenizer is never matched. Cost: O(T)
    table look-ups for each length of the aliases with the same first token; `setup_tokenizer`
    encodes every alias once.
    """

    def __init__(
        self,
        knowledge: KnowledgeBase,
        words: WordStartFinder,
        *,
        max_candidates: int = 30,
        first_entity: int = 0,
    ) -> None:
        """`first_entity`: its first entity's id in the corpus, if knowledge bases were joined."""
        assert max_candidates > 0
        self.part = KnowledgePart(knowledge=knowledge, first=first_entity)
        self.knowledge = knowledge
        self.words = words
        self.max_candidates = max_candidates
        self._numbers: dict[tuple[int, ...], int] = {}
        """Alias ids by their tokens."""
        self._lengths: dict[int, tuple[int, ...]] = {}
        """Possible alias lengths by first token, longest first."""
        self._first: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        """(A + 1,) start of each alias's candidates in the two lists."""
        self._entities: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._priors: NDArray[np.float32] = np.zeros(0, dtype=np.float32)

    def __len__(self) -> int:
        """Number of aliases that the tokenizer can encode."""
        return len(self._numbers)

    def setup_tokenizer(self, tokenizer: TokenizerProtocol, *, unknown: int | None) -> None:
        """Tokenise the aliases."""
        self.words.setup_tokenizer(tokenizer)
        texts = list(dict.fromkeys(alias.words for alias in self.knowledge.aliases))
        encoded = dict(zip(texts, map(tuple, batch_encode(tokenizer, texts)), strict=True))
        counts: dict[tuple[int, ...], dict[int, float]] = {}
        for alias in self.knowledge.aliases:
            tokens = encoded[alias.words]
            if tokens and unknown not in tokens:
                entity_counts = counts.setdefault(tokens, {})
                entity_counts[alias.entity] = entity_counts.get(alias.entity, 0.0) + alias.count
        self._numbers = {tokens: number for number, tokens in enumerate(counts)}
        lengths: dict[int, set[int]] = {}
        for tokens in counts:
            lengths.setdefault(tokens[0], set()).add(len(tokens))
        self._lengths = {first: tuple(sorted(n, reverse=True)) for first, n in lengths.items()}
        self._set_candidates(list(counts.values()))

    def _set_candidates(self, counts: Sequence[dict[int, float]]) -> None:
        entities, priors, first = list[int](), list[float](), [0]
        for entity_counts in counts:
            best = sorted(entity_counts.items(), key=lambda item: (-item[1], item[0]))[
                : self.max_candidates
            ]
            total = sum(count for _, count in best)
            entities += [entity for entity, _ in best]
            priors += [count / total for _, count in best]
            first.append(len(entities))
        self._first = np.array(first, dtype=np.int64)
        self._entities = np.array(entities, dtype=np.int64)
        self._priors = np.array(priors, dtype=np.float32)

    def find(self, batch: Batch, allowed: Tensor) -> MentionSpans:
        """The mentions in the rows of a batch among the positions `allowed` (B, T).

        Gold entities of the batch are assigned to mentions with exactly the same span.
        """
        starts = self.words.starts(batch, allowed)
        stops = starts | ~allowed
        mentions: list[tuple[int, int, int, int]] = []
        if self._numbers:
            rows = zip(
                batch.tokens.tolist(),
                starts.tolist(),
                stops.tolist(),
                allowed.tolist(),
                strict=True,
            )
            for row, (tokens, start, stop, usable) in enumerate(rows):
                for position, length, alias in self._match(tokens, start, [*stop, True], usable):
                    mentions.append((row, position, position + length - 1, alias))
        device = batch.tokens.device
        table = torch.tensor(mentions, dtype=torch.long).view(-1, 4)
        candidates, priors = self._candidates(table[:, 3].numpy())
        spans = MentionSpans(
            rows=table[:, 0].to(device),
            first=table[:, 1].to(device),
            last=table[:, 2].to(device),
            entities=torch.full((len(mentions),), NO_ENTITY, device=device),
            candidates=torch.from_numpy(candidates).to(device),
            priors=torch.from_numpy(priors).to(device),
        )
        if batch.entities is None:
            return spans
        return with_gold_entities(spans, self.part.own_ids(batch.entities))

    def _match(
        self, tokens: list[int], starts: list[bool], stops: list[bool], allowed: list[bool]
    ) -> list[tuple[int, int, int]]:
        """Position, length and alias of each mention in a row, by position."""
        mentions = []
        for position, token in enumerate(tokens):
            if not starts[position] or token not in self._lengths:
                continue
            for length in reversed(self._lengths[token]):
                end = position + length
                if end >= len(stops) or not all(allowed[position:end]):
                    break
                alias = self._numbers.get(tuple(tokens[position:end]))
                if alias is not None and stops[end]:
                    mentions.append((position, length, alias))
        return mentions

    def _candidates(
        self, aliases: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(M, C) candidates of some aliases and their priors, C the maximum."""
        first, last = self._first[aliases], self._first[aliases + 1]
        width = int((last - first).max(initial=0))
        index = first[:, None] + np.arange(width)
        real = index < last[:, None]
        index = np.where(real, index, 0)
        if not width:
            return index, index.astype(np.float32)
        entities = np.where(real, self._entities[index], NO_ENTITY)
        return entities, np.where(real, self._priors[index], np.float32(0))


def with_gold_entities(spans: MentionSpans, entities: Tensor) -> MentionSpans:
    """The spans with the gold entities (B, T) of a corpus, where they match exactly."""
    gold = annotated_spans(entities)
    table = zip(gold.rows.tolist(), gold.first.tolist(), gold.last.tolist(), strict=True)
    entity_at = dict(zip(table, gold.entities.tolist(), strict=True))
    keys = zip(spans.rows.tolist(), spans.first.tolist(), spans.last.tolist(), strict=True)
    matched = [entity_at.get(key, NO_ENTITY) for key in keys]
    return replace(spans, entities=torch.tensor(matched, dtype=torch.long).to(entities.device))
