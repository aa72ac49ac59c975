"""Prefixes as text."""

from __future__ import annotations

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import train_tokenizer
from lmlab.sampling.prompts import encode_prefix


def test_unknown_words_are_fed_as_unknown_and_named():
    tokenizer = train_tokenizer("word", ["the cat sat"])
    found = encode_prefix("the zebra saw the zebra", tokenizer)
    unknown = tokenizer.vocabulary.unknown
    the = tokenizer.id("the")
    assert found.ids == (the, unknown, unknown, the, unknown)
    assert found.unknown == ("zebra", "saw")
    assert found.note is not None and "'zebra', 'saw'" in found.note
    assert encode_prefix("the cat", tokenizer).note is None


def test_contiguous_models_begin_after_an_end_of_line():
    vocabulary = Vocabulary(size=9, first=3)
    assert vocabulary.bos == 3
    assert Vocabulary(size=9).bos == 2
    assert Vocabulary(size=9, start=None).bos == 3
