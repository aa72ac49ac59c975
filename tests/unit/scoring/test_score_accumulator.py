"""Chunked encoding gives the tokens and offsets of the whole text, for every tokenizer kind."""

from __future__ import annotations

import pytest

from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.score_accumulator import token_chunks

TEXTS = [
    "the cat sat on the mat , and   then  <unk> it's gone\u3000away again " * 12,
    "北京是中国的首都，上海不是。" * 30,
    "the 北京 cat<unk> sat 中国 " * 25,
    "word" * 100,
    " leading and trailing  ",
    "",
]


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_chunks_concatenate_to_the_whole_encoding(kind, size, monkeypatch):
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", size)
    tokenizer = train_tokenizer(kind, [*TEXTS[:3], "the cat sat", "a mat"])
    for text in TEXTS:
        ids, spans = tokenizer.encode_with_offsets(text)
        chunks = list(token_chunks(tokenizer, text))
        assert [id for chunk in chunks for id in chunk.ids] == ids
        assert [span for chunk in chunks for span in chunk.spans] == spans
        plain = list(token_chunks(tokenizer, text, offsets=False))
        assert [id for chunk in plain for id in chunk.ids] == tokenizer.encode(text)


def test_chunk_size_is_bounded(monkeypatch):
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 50)
    for kind, longest in (("word", 60), ("char", 60), ("bpe", 70), ("wordpiece", 60)):
        tokenizer = train_tokenizer(kind, TEXTS[:3])
        sizes = [len(chunk.ids) for chunk in token_chunks(tokenizer, "the cat sat on " * 100)]
        assert len(sizes) > 20
        assert max(sizes) <= longest


def test_overlong_word_is_split_for_subword_tokenizers_only(monkeypatch):
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 50)
    monkeypatch.setattr("lmlab.scoring.score_accumulator.MAX_WORD_CHARACTERS", 100)
    endless = "x" * 1000
    words = train_tokenizer("word", TEXTS[:3])
    assert [chunk.ids for chunk in token_chunks(words, endless)] == [[words.vocabulary.unknown]]
    subwords = train_tokenizer("bpe", TEXTS[:3])
    chunks = list(token_chunks(subwords, endless))
    assert len(chunks) == 7  # 150 characters in each
    assert subwords.decode([id for chunk in chunks for id in chunk.ids]).replace(" ", "") == endless
