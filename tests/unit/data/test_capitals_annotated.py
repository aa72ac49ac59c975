"""Capitals with gold mentions: correct spans, and held-out capitals in no training text."""

from __future__ import annotations

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.countries import country_table
from lmlab.data.languages import capitals_annotated
from lmlab.data.languages.capitals_annotated import (
    capital_questions,
    countries_with_capital_stated,
    countries_with_capital_unstated,
)
from lmlab.knowledge.load_knowledge import load_knowledge


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("capitals-annotated")


def test_mention_spans_match_their_entity_names(corpus: Corpus):
    known = load_knowledge("capitals").numbers
    for split in corpus.splits.values():
        for example in split:
            assert example.mentions
            for mention in example.mentions:
                assert example.text[mention.start : mention.end] == mention.entity
                assert mention.entity in known


def test_held_out_capitals_occur_only_in_the_test_split(corpus: Corpus):
    held_out = {
        (country.country_en, country.capital_en) for country in countries_with_capital_unstated()
    }
    for name in ("train", "validation"):
        for example in corpus.splits[name]:
            named = {mention.entity for mention in example.mentions}
            assert not any(set(pair) <= named for pair in held_out), example.text
    test = [tuple(m.entity for m in example.mentions) for example in corpus.splits["test"]]
    assert {frozenset(named) for named in test} == {frozenset(pair) for pair in held_out}
    assert len(test) == 4 * len(held_out) == 144  # (186 - 4 of one name) // 5 = 36, in four forms


def test_train_split_covers_the_test_vocabulary(corpus: Corpus):
    words = {name: set(" ".join(corpus.splits[name].texts()).split()) for name in corpus.splits}
    assert words["test"] <= words["train"] and words["validation"] <= words["train"]


def test_knowledge_base_lacks_only_the_held_out_capitals():
    whole, stated = load_knowledge("capitals"), load_knowledge("capitals-annotated")
    assert whole.entities == stated.entities and whole.relations == stated.relations
    missing = {
        (whole.entities[f.subject].name, whole.relations[f.relation], whole.entities[f.object].name)
        for f in set(whole.facts) - set(stated.facts)
    }
    expected = {(e.country_en, "capital", e.capital_en) for e in countries_with_capital_unstated()}
    expected |= {
        (e.capital_en, "capital of", e.country_en) for e in countries_with_capital_unstated()
    }
    assert missing == expected and set(stated.facts) < set(whole.facts)
    paris = whole.objects[whole.number("France"), whole.relation("capital")]
    assert [whole.entities[number].name for number in paris] == ["Paris"]
    assert whole.objects[whole.number("Paris"), whole.relation("in Chinese")] == (
        whole.number("巴黎"),
    )


def test_capital_questions_mask_the_capital():
    questions = capital_questions(country_table()[:1])
    assert [question.text for question in questions] == [
        "the capital of China is <mask>",
        "<mask> is the capital of China",
        "China has <mask> as its capital",
        "China 's capital is <mask>",
    ]
    assert {(question.subject, question.relation, question.answer) for question in questions} == {
        ("China", "capital", "Beijing")
    }
    assert len(countries_with_capital_stated()) + len(countries_with_capital_unstated()) == len(
        country_table()
    )


def test_zero_sentences_are_refused():
    with pytest.raises(UserError, match="at least 1 sentence"):
        capitals_annotated.corpus(sentences=0)
