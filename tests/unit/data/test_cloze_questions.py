"""Cloze questions from WordNet examples, with glosses or words as answers."""

from __future__ import annotations

from dataclasses import replace

from lmlab.data.corpus import SPLITS, open_corpus
from lmlab.data.tokenizers import tokenizer_for
from lmlab.data.wordnet import load_wordnet
from lmlab.data.wordnet.cloze_questions import QUESTION_BLANK, gloss_text, synset_questions
from lmlab.retrieval.documents import load_documents


def test_cloze_question_blanks_the_answer_word():
    [frost] = [s for s in load_wordnet().find("frost", "v") if "frost the glass" in s.examples]
    questions = [(question.text, question.answer) for question in synset_questions(frost)]
    assert questions == [
        (f"{QUESTION_BLANK} the glass", "frost"),
        (f"she {QUESTION_BLANK} her hair", "frost"),
    ]


def test_longest_matching_lemma_is_blanked():
    [synset] = load_wordnet().find("course of action", "n")
    texts = {question.answer: question.text for question in synset_questions(synset)}
    assert QUESTION_BLANK in texts["course of action"]
    assert "of action" not in texts["course of action"]


def test_example_of_only_the_answer_gives_no_question():
    synset = replace(load_wordnet().find("fine", "r")[0], examples=("Fine", "he is fine"))
    assert [question.text for question in synset_questions(synset)] == [f"he is {QUESTION_BLANK}"]


def test_gloss_texts_equal_the_wordnet_documents():
    documents = load_documents("wordnet")
    for name in list(load_wordnet())[::20000]:
        assert gloss_text(load_wordnet()[name]) == documents[documents.numbers[name]].text


def test_wordnet_question_corpora_are_built_in():
    for name in ("wordnet-examples", "wordnet-questions"):
        corpus = open_corpus(name)
        assert corpus.layout.kind == "pairs"
        assert tuple(corpus.splits) == SPLITS


def test_corpus_tokenizer_can_encode_every_answer():
    """With a word vocabulary of min_count 2, 39 % of the answers would be unknown."""
    corpus = open_corpus("wordnet-questions")
    tokenizer = tokenizer_for(corpus)
    texts = [example.text for example in corpus.split("test")]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
