"""Capitals with mentions told: what is told is true, and what is held out is in no text."""

from __future__ import annotations

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.countries import country_table
from lmlab.data.languages import capitals_told
from lmlab.data.languages.capitals_told import (
    capital_questions,
    countries_with_capital_stated,
    countries_with_capital_unstated,
)
from lmlab.knowledge.load_knowledge import load_knowledge


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("capitals-told")


def test_every_mention_is_told_where_its_words_stand(corpus: Corpus):
    known = load_knowledge("capitals").numbers
    for split in corpus.splits.values():
        for example in split:
            assert example.mentions
            for mention in example.mentions:
                assert example.text[mention.start : mention.end] == mention.entity
                assert mention.entity in known


def test_no_text_but_the_test_split_has_an_unstated_country_beside_its_capital(corpus: Corpus):
    held_out = {(each.country_en, each.capital_en) for each in countries_with_capital_unstated()}
    for name in ("train", "validation"):
        for example in corpus.splits[name]:
            named = {mention.entity for mention in example.mentions}
            assert not any(set(pair) <= named for pair in held_out), example.text
    test = [tuple(m.entity for m in example.mentions) for example in corpus.splits["test"]]
    assert {frozenset(named) for named in test} == {frozenset(pair) for pair in held_out}
    assert len(test) == 4 * len(held_out) == 144  # (186 - 4 of one name) // 5 = 36, in four forms


def test_training_knows_every_word_of_the_test(corpus: Corpus):
    words = {name: set(" ".join(corpus.splits[name].texts()).split()) for name in corpus.splits}
    assert words["test"] <= words["train"] and words["validation"] <= words["train"]


def test_the_knowledge_of_the_texts_lacks_just_the_unstated_capitals():
    whole, told = load_knowledge("capitals"), load_knowledge("capitals-told")
    assert whole.entities == told.entities and whole.relations == told.relations
    missing = {
        (whole.entities[f.subject].name, whole.relations[f.relation], whole.entities[f.object].name)
        for f in set(whole.facts) - set(told.facts)
    }
    expected = {(e.country_en, "capital", e.capital_en) for e in countries_with_capital_unstated()}
    expected |= {
        (e.capital_en, "capital of", e.country_en) for e in countries_with_capital_unstated()
    }
    assert missing == expected and set(told.facts) < set(whole.facts)
    paris = whole.objects[whole.number("France"), whole.relation("capital")]
    assert [whole.entities[number].name for number in paris] == ["Paris"]
    assert whole.objects[whole.number("Paris"), whole.relation("in Chinese")] == (
        whole.number("巴黎"),
    )


def test_questions_hide_the_capital():
    asked = capital_questions(country_table()[:1])
    assert [each.text for each in asked] == [
        "the capital of China is <mask>",
        "<mask> is the capital of China",
        "China has <mask> as its capital",
        "China 's capital is <mask>",
    ]
    assert {(each.subject, each.relation, each.answer) for each in asked} == {
        ("China", "capital", "Beijing")
    }
    assert len(countries_with_capital_stated()) + len(countries_with_capital_unstated()) == len(
        country_table()
    )


def test_numbers_out_of_range_are_told():
    with pytest.raises(UserError, match="at least 1 sentence"):
        capitals_told.corpus(sentences=0)
