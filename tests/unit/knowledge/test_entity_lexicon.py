"""Mention candidates by alias matching: spans, candidates and priors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.entity_lexicon import EntityLexicon
from lmlab.knowledge.knowledge_base import Alias, Entity, KnowledgeBase
from lmlab.objectives.masking.whole_word_masking import WordUnits

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "prince", "sang", "purple", "rain", "##bow"]
VOCABULARY = Vocabulary(size=len(TOKENS))
KNOWLEDGE = KnowledgeBase(
    entities=tuple(Entity(name=name) for name in ("singer", "ruler", "song", "weather", "colour")),
    aliases=(
        Alias("prince", 0, 1.0),
        Alias("prince", 1, 3.0),
        Alias("purple rain", 2, 5.0),
        Alias("rain", 3, 1.0),
        Alias("rain", 2, 1.0),
        Alias("violet", 4, 1.0),
    ),
)


class WordPieceStub:
    kind = "wordpiece"

    def token(self, id: int) -> str:
        return TOKENS[id]

    def encode(self, text: str) -> list[int]:
        return [TOKENS.index(word) if word in TOKENS else 1 for word in text.split()]


def lexicon(max_candidates: int = 30) -> EntityLexicon:
    built = EntityLexicon(KNOWLEDGE, WordUnits(VOCABULARY), max_candidates=max_candidates)
    built.setup_tokenizer(WordPieceStub(), unknown=VOCABULARY.unknown)
    return built


def batch_of(*texts: str) -> Batch:
    return Batch.collate([[2, *WordPieceStub().encode(text), 3] for text in texts], pad=0)


def unmasked_positions(batch: Batch) -> torch.Tensor:
    return (batch.tokens >= 4) | (batch.tokens == 1)


def test_overlapping_mentions_have_candidates_and_priors():
    batch = batch_of("sang", "prince sang purple rain")
    mentions = lexicon().find(batch, unmasked_positions(batch))
    spans = list(
        zip(mentions.rows.tolist(), mentions.first.tolist(), mentions.last.tolist(), strict=True)
    )
    # [Prince] sang [Purple [Rain]], in the second row.
    assert spans == [(1, 1, 1), (1, 3, 4), (1, 4, 4)]
    # prince: the ruler 3 of 4 times; rain: a tie, ordered by entity number.
    assert mentions.candidates.tolist() == [[1, 0], [2, -1], [2, 3]]
    assert mentions.priors.tolist() == [[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]]
    assert mentions.entities.tolist() == [-1, -1, -1]


def test_alias_with_unknown_tokens_never_matches():
    assert len(lexicon()) == 3
    batch = batch_of("violet")
    assert len(lexicon().find(batch, unmasked_positions(batch))) == 0


def test_max_candidates_keeps_most_frequent_and_renormalises():
    batch = batch_of("prince")
    mentions = lexicon(max_candidates=1).find(batch, unmasked_positions(batch))
    assert mentions.candidates.tolist() == [[1]]
    assert mentions.priors.tolist() == [[1.0]]


def test_mentions_match_whole_words_only():
    batch = batch_of("rain ##bow rain")
    mentions = lexicon().find(batch, unmasked_positions(batch))
    assert mentions.first.tolist() == [3]


@pytest.mark.parametrize(
    ("masked", "expected"), [(4, [(1, 1)]), (3, [(1, 1), (4, 4)]), (1, [(3, 4)])]
)
def test_masked_positions_are_not_part_of_mentions(masked, expected):
    batch = batch_of("prince sang purple rain")
    allowed = unmasked_positions(batch)
    allowed[0, masked] = False
    mentions = lexicon().find(batch, allowed)
    spans = list(zip(mentions.first.tolist(), mentions.last.tolist(), strict=True))
    assert spans == expected + ([(4, 4)] if masked == 1 else [])


def test_gold_entities_apply_to_exactly_matching_spans():
    batch = batch_of("prince sang purple rain")
    entities = torch.full_like(batch.tokens, -1)
    entities[0, 3:5] = 2
    mentions = lexicon().find(replace(batch, entities=entities), unmasked_positions(batch))
    assert mentions.entities.tolist() == [-1, 2, -1]


def test_lexicon_without_tokenizer_finds_no_mentions():
    batch = batch_of("prince")
    mentions = EntityLexicon(KNOWLEDGE, WordUnits(VOCABULARY)).find(
        batch, unmasked_positions(batch)
    )
    assert len(mentions) == 0 and mentions.candidates.shape == (0, 0)
