"""A long text in pieces has the tokens and places of the whole, for every kind of tokeniser."""

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
def test_pieces_are_the_whole(kind, size, monkeypatch):
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", size)
    tokenizer = train_tokenizer(kind, [*TEXTS[:3], "the cat sat", "a mat"])
    for text in TEXTS:
        ids, spans = tokenizer.encode_with_offsets(text)
        found = list(token_chunks(tokenizer, text))
        assert [id for piece in found for id in piece.ids] == ids
        assert [span for piece in found for span in piece.spans] == spans
        plain = list(token_chunks(tokenizer, text, offsets=False))
        assert [id for piece in plain for id in piece.ids] == tokenizer.encode(text)


def test_pieces_are_bounded_where_the_text_allows(monkeypatch):
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 50)
    for kind, longest in (("word", 60), ("char", 60), ("bpe", 70), ("wordpiece", 60)):
        tokenizer = train_tokenizer(kind, TEXTS[:3])
        sizes = [len(piece.ids) for piece in token_chunks(tokenizer, "the cat sat on " * 100)]
        assert len(sizes) > 20
        assert max(sizes) <= longest


def test_a_word_without_end_is_divided_for_subwords_only(monkeypatch):
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 50)
    monkeypatch.setattr("lmlab.scoring.score_accumulator.MAX_WORD_CHARACTERS", 100)
    endless = "x" * 1000
    words = train_tokenizer("word", TEXTS[:3])
    assert [piece.ids for piece in token_chunks(words, endless)] == [[words.vocabulary.unknown]]
    subwords = train_tokenizer("bpe", TEXTS[:3])
    found = list(token_chunks(subwords, endless))
    assert len(found) == 7  # 150 characters in each
    assert subwords.decode([id for piece in found for id in piece.ids]).replace(" ", "") == endless
