"""Prompts: encoding a text prefix."""

from __future__ import annotations

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import train_tokenizer
from lmlab.sampling.prompts import encode_prefix


def test_unknown_prefix_words_are_encoded_and_reported():
    tokenizer = train_tokenizer("word", ["the cat sat"])
    prefix = encode_prefix("the zebra saw the zebra", tokenizer)
    unknown = tokenizer.vocabulary.unknown
    the = tokenizer.id("the")
    assert prefix.ids == (the, unknown, unknown, the, unknown)
    assert prefix.unknown == ("zebra", "saw")
    assert prefix.note is not None and "'zebra', 'saw'" in prefix.note
    assert encode_prefix("the cat", tokenizer).note is None


def test_contiguous_models_start_after_an_end_of_line():
    vocabulary = Vocabulary(size=9, first=3)
    assert vocabulary.bos == 3
    assert Vocabulary(size=9).bos == 2
    assert Vocabulary(size=9, start=None).bos == 3
