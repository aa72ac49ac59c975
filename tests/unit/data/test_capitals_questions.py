"""Questions about capitals: held-out countries, and a document that answers each question."""

from __future__ import annotations

from lmlab.data.corpus import open_corpus
from lmlab.data.countries import country_table
from lmlab.data.languages.capitals_questions import QUESTIONS
from lmlab.data.tokenizers import tokenizer_for
from lmlab.retrieval.documents import load_documents


def test_every_fifth_country_is_held_out_from_training():
    """186 countries: 37 held out, 18 for validation and 19 for test."""
    corpus = open_corpus("capitals-questions")
    conditions = {
        name: [example.condition for example in corpus.splits[name]] for name in corpus.splits
    }
    counts = {name: len(rows) / len(QUESTIONS) for name, rows in conditions.items()}
    assert counts == {"train": 186 - 37, "validation": 18, "test": 19}
    held_out = {row.country_en for row in country_table()[4::5]}
    outside = {*conditions["validation"], *conditions["test"]}
    assert outside == {q.format(country=country) for country in held_out for q in QUESTIONS}
    assert not outside & {*conditions["train"]}


def test_every_question_has_a_document_and_known_answer_tokens():
    corpus, documents = open_corpus("capitals-questions"), load_documents("capitals")
    tokenizer = tokenizer_for(corpus)
    document_texts = {document.text for document in documents}
    for split in corpus.splits.values():
        for example in split:
            assert tokenizer.vocabulary.unknown not in tokenizer.encode(example.text)
            start, _, country = QUESTIONS[0].partition("{country}")
            if example.condition.startswith(start):
                name = example.condition.removeprefix(start).removesuffix(country)
                assert f"the capital of {name} is {example.text}" in document_texts
