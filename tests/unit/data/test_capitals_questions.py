"""Questions for capitals: which countries are held out, and that a document answers each."""

from __future__ import annotations

from lmlab.data.corpus import open_corpus
from lmlab.data.countries import country_table
from lmlab.data.languages.capitals_questions import QUESTIONS
from lmlab.data.tokenizers import tokenizer_for
from lmlab.retrieval.documents import load_documents


def test_every_fifth_country_is_asked_for_outside_training_alone():
    """186 countries: 37 held out, 18 of them for validation and 19 for the test."""
    corpus = open_corpus("capitals-questions")
    asked = {name: [example.condition for example in corpus.splits[name]] for name in corpus.splits}
    counts = {name: len(rows) / len(QUESTIONS) for name, rows in asked.items()}
    assert counts == {"train": 186 - 37, "validation": 18, "test": 19}
    held_out = {each.country_en for each in country_table()[4::5]}
    outside = {*asked["validation"], *asked["test"]}
    assert outside == {q.format(country=country) for country in held_out for q in QUESTIONS}
    assert not outside & {*asked["train"]}


def test_a_document_answers_each_question_in_words_that_are_known():
    corpus, documents = open_corpus("capitals-questions"), load_documents("capitals")
    tokenizer = tokenizer_for(corpus)
    told = {each.text for each in documents}
    for split in corpus.splits.values():
        for example in split:
            assert tokenizer.vocabulary.unknown not in tokenizer.encode(example.text)
            start, _, country = QUESTIONS[0].partition("{country}")
            if example.condition.startswith(start):
                name = example.condition.removeprefix(start).removesuffix(country)
                assert f"the capital of {name} is {example.text}" in told
