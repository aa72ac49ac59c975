"""Annotated entity mentions, from the corpus file to the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lmlab.core.entity_mentions import NO_ENTITY, annotated_spans
from lmlab.core.errors import UserError
from lmlab.data.batches import shard_rows
from lmlab.data.corpus import Corpus, Layout, Split, open_corpus
from lmlab.data.corpus_encoding import encoded_chunks
from lmlab.data.dataset import TokenDataset
from lmlab.data.readers import Example, Mention
from lmlab.data.tokenizers import Tokenizer, tokenizer_for
from lmlab.knowledge.knowledge_base import Entity, KnowledgeBase
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import training_data

KNOWLEDGE = KnowledgeBase(entities=tuple(Entity(name=name) for name in ("cat", "york", "dog")))
ROWS = [
    {"text": "the cat of new york", "mentions": [[4, 7, "cat"], [11, 19, "york"]]},
    {"text": " dog dog", "mentions": [[1, 4, "dog"], [5, 8, "cat"]]},
    {"text": "nothing here"},
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def entities_of(path: Path, kind: str, **words) -> list[list[int]]:
    corpus = open_corpus(path)
    tokenizer: Tokenizer = tokenizer_for(corpus, kind)
    dataset = TokenDataset.build(
        corpus.splits["train"], tokenizer, Layout(**words), progress=False, entities=KNOWLEDGE
    )
    return [dataset.entities(row).tolist() for row in range(len(dataset))]


def test_word_tokens_have_the_entity_of_their_mention(tmp_path: Path):
    entities = entities_of(write(tmp_path / "told.jsonl", ROWS), "word")
    # <s> the cat of new york </s>; cat is entity 0, york 1; the space before dog is stripped.
    assert entities == [[-1, -1, 0, -1, 1, 1, -1], [-1, 2, 0, -1], [-1, -1, -1, -1]]


def test_character_tokens_have_entities_after_truncation(tmp_path: Path):
    entities = entities_of(write(tmp_path / "told.jsonl", ROWS), "char", cut=8)
    # <s> t h e _ c a t, cut after eight.
    assert entities[0] == [-1, -1, -1, -1, -1, 0, 0, 0]
    assert entities[1] == [-1, 2, 2, 2, -1, 0, 0, 0]


def test_batch_and_its_shards_carry_entities(tmp_path: Path):
    corpus = open_corpus(write(tmp_path / "told.jsonl", ROWS))
    tokenizer = tokenizer_for(corpus, "word")
    data = training_data(corpus, tokenizer, TrainingConfig(), progress=False, entities=KNOWLEDGE)
    batch = next(data.train.epoch(0))
    assert batch.entities is not None and batch.entities.shape == batch.tokens.shape
    by_row = {int(row): batch.entities[index] for index, row in enumerate(batch.rows)}
    assert by_row[0].tolist() == [-1, -1, 0, -1, 1, 1, -1]
    short = shard_rows(batch.select([list(by_row).index(1)]), 0, 1)
    assert short.entities is not None and short.entities.tolist() == [[-1, 2, 0, -1]]


def test_annotated_spans_have_first_and_last_token():
    entities = torch.tensor([[-1, 4, 4, 5, -1, 4], [-1, -1, -1, -1, -1, -1], [7, -1, 7, 7, -1, -1]])
    spans = annotated_spans(entities)
    assert spans.rows.tolist() == [0, 0, 0, 2, 2]
    assert spans.first.tolist() == [1, 3, 5, 0, 2]
    assert spans.last.tolist() == [2, 3, 5, 0, 3]
    assert spans.entities.tolist() == [4, 5, 4, 7, 7]
    assert len(spans) == 5 and spans.candidates.shape == (5, 0)
    assert len(annotated_spans(torch.full((2, 3), NO_ENTITY))) == 0


def test_unknown_entity_is_reported_by_line(tmp_path: Path):
    """The line number counts the empty text and the empty line before it."""
    rows = [{"text": "a day"}, {"text": ""}, {"text": "a cow", "mentions": [[2, 5, "cow"]]}]
    path = write(tmp_path / "told.jsonl", rows)
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    message = (
        r"told\.jsonl, line 4 \('a cow'\) mentions the entity 'cow', which is not in the knowledge"
    )
    with pytest.raises(UserError, match=message):
        entities_of(path, "word")


def test_unknown_entity_without_file_is_reported_by_number():
    examples = [Example("a day"), Example("a cow", mentions=(Mention(2, 5, "cow"),))]
    split = Split.from_list(examples, identity="two", name="train")
    corpus = Corpus(name="two", splits={"train": split})
    tokenizer = tokenizer_for(corpus, "word")
    chunks = encoded_chunks(
        split, tokenizer, tokenizer, corpus.layout, progress=False, entities=KNOWLEDGE
    )
    with pytest.raises(UserError, match=r"text 2 of train \('a cow'\) mentions the entity 'cow'"):
        list(chunks)


@pytest.mark.parametrize(
    "mentions",
    [
        "cat",
        [[0, 3]],
        [[0, 9, "cat"]],
        [[2, 2, "cat"]],
        [[0, 3, "cat"], [2, 5, "dog"]],
        [[0, 3, 1]],
    ],
)
def test_invalid_mentions_are_reported_by_line(tmp_path: Path, mentions: object):
    rows = [{"text": "fine"}, {"text": "a cow", "mentions": mentions}]
    with pytest.raises(UserError, match=r"told.jsonl, line 2: expected .*mentions"):
        entities_of(write(tmp_path / "told.jsonl", rows), "word")
