"""Mentions found by aliases: where, with which candidates, how likely before any context."""

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


class Pieces:
    kind = "wordpiece"

    def token(self, id: int) -> str:
        return TOKENS[id]

    def encode(self, text: str) -> list[int]:
        return [TOKENS.index(word) if word in TOKENS else 1 for word in text.split()]


def lexicon(most: int = 30) -> EntityLexicon:
    made = EntityLexicon(KNOWLEDGE, WordUnits(VOCABULARY), most=most)
    made.setup_tokenizer(Pieces(), unknown=VOCABULARY.unknown)
    return made


def batch_of(*texts: str) -> Batch:
    return Batch.collate([[2, *Pieces().encode(text), 3] for text in texts], pad=0)


def everywhere(batch: Batch) -> torch.Tensor:
    return (batch.tokens >= 4) | (batch.tokens == 1)


def test_overlapping_mentions_with_their_candidates():
    batch = batch_of("sang", "prince sang purple rain")
    found = lexicon().find(batch, everywhere(batch))
    where = list(zip(found.rows.tolist(), found.first.tolist(), found.last.tolist(), strict=True))
    # [Prince] sang [Purple [Rain]], in the second row.
    assert where == [(1, 1, 1), (1, 3, 4), (1, 4, 4)]
    # prince: the ruler 3 of 4 times; rain: a tie, by number.
    assert found.candidates.tolist() == [[1, 0], [2, -1], [2, 3]]
    assert found.priors.tolist() == [[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]]
    assert found.entities.tolist() == [-1, -1, -1]


def test_an_alias_that_the_tokeniser_cannot_write_is_never_found():
    assert len(lexicon()) == 3
    batch = batch_of("violet")
    assert len(lexicon().find(batch, everywhere(batch))) == 0


def test_only_the_most_frequent_are_candidates_and_their_priors_sum_to_one():
    batch = batch_of("prince")
    found = lexicon(most=1).find(batch, everywhere(batch))
    assert found.candidates.tolist() == [[1]]
    assert found.priors.tolist() == [[1.0]]


def test_mentions_are_whole_words():
    batch = batch_of("rain ##bow rain")
    found = lexicon().find(batch, everywhere(batch))
    assert found.first.tolist() == [3]


@pytest.mark.parametrize(("hidden", "left"), [(4, [(1, 1)]), (3, [(1, 1), (4, 4)]), (1, [(3, 4)])])
def test_what_is_hidden_is_part_of_no_mention(hidden, left):
    batch = batch_of("prince sang purple rain")
    allowed = everywhere(batch)
    allowed[0, hidden] = False
    found = lexicon().find(batch, allowed)
    where = list(zip(found.first.tolist(), found.last.tolist(), strict=True))
    assert where == left + ([(4, 4)] if hidden == 1 else [])


def test_what_a_corpus_tells_is_told_of_the_same_places_alone():
    batch = batch_of("prince sang purple rain")
    entities = torch.full_like(batch.tokens, -1)
    entities[0, 3:5] = 2
    found = lexicon().find(replace(batch, entities=entities), everywhere(batch))
    assert found.entities.tolist() == [-1, 2, -1]


def test_before_it_met_a_tokeniser_it_finds_nothing():
    batch = batch_of("prince")
    found = EntityLexicon(KNOWLEDGE, WordUnits(VOCABULARY)).find(batch, everywhere(batch))
    assert len(found) == 0 and found.candidates.shape == (0, 0)
