"""Entity names in a text, and the sentence around a match."""

from __future__ import annotations

from lmlab.data.name_matching import find_entity_name, sentence_around

TEXT = "An axle is a kind of shaft . The whole of it is wheel . Shafts turn ."


def test_entity_names_match_whole_words_ignoring_case():
    assert find_entity_name(TEXT, "shaft") == (21, 26)
    assert TEXT[21:26] == "shaft"
    assert find_entity_name(TEXT, "SHAFTS") == (56, 62)
    assert find_entity_name(TEXT, "haft") is None
    assert find_entity_name("a . b", ".") == (2, 3)


def test_sentence_around_ends_at_sentence_punctuation():
    low, high = find_entity_name(TEXT, "wheel")
    assert sentence_around(TEXT, low, high) == "The whole of it is wheel ."
    assert sentence_around(TEXT, 3, 7) == "An axle is a kind of shaft ."
    assert sentence_around("no mark here", 3, 7) == "no mark here"
    assert sentence_around("它是轴。轮是整体。", 4, 5) == "轮是整体。"
