"""Prefixes as text."""

from __future__ import annotations

from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.sampling.prefix import encode_prefix


def test_unknown_words_are_fed_as_unknown_and_named():
    tokenizer = train_tokenizer("word", ["the cat sat"])
    found = encode_prefix("the zebra saw the zebra", tokenizer, Layout())
    unknown = tokenizer.vocabulary.unknown
    the = tokenizer.id("the")
    assert found.ids == (the, unknown, unknown, the, unknown)
    assert found.unknown == ("zebra", "saw")
    assert found.note is not None and "'zebra', 'saw'" in found.note
    assert encode_prefix("the cat", tokenizer, Layout()).note is None


def test_contiguous_models_begin_after_an_end_of_line():
    tokenizer = train_tokenizer("word", ["the cat sat"])
    layout = Layout(kind="contiguous")
    end = tokenizer.vocabulary.end
    assert encode_prefix("", tokenizer, layout).ids == (end,)
    assert encode_prefix("cat", tokenizer, layout).ids == (end, tokenizer.id("cat"))
    assert encode_prefix("", tokenizer, Layout()).ids == ()
