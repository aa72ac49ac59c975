"""Examples of WordNet as questions, with glosses or words as their answers."""

from __future__ import annotations

from dataclasses import replace

from lmlab.data.corpus import SPLITS, open_corpus
from lmlab.data.tokenizers import tokenizer_for
from lmlab.data.wordnet import load_wordnet
from lmlab.data.wordnet.cloze_questions import QUESTION_BLANK, gloss_text, synset_questions
from lmlab.retrieval.documents import load_documents


def test_the_word_is_left_out_and_asked_for():
    [frost] = [s for s in load_wordnet().find("frost", "v") if "frost the glass" in s.examples]
    asked = [(each.text, each.answer) for each in synset_questions(frost)]
    assert asked == [
        (f"{QUESTION_BLANK} the glass", "frost"),
        (f"she {QUESTION_BLANK} her hair", "frost"),
    ]


def test_of_several_lemmas_the_longest_is_left_out():
    [synset] = load_wordnet().find("course of action", "n")
    texts = {each.answer: each.text for each in synset_questions(synset)}
    assert QUESTION_BLANK in texts["course of action"]
    assert "of action" not in texts["course of action"]


def test_an_example_that_is_nothing_but_its_word_is_no_question():
    synset = replace(load_wordnet().find("fine", "r")[0], examples=("Fine", "he is fine"))
    assert [each.text for each in synset_questions(synset)] == [f"he is {QUESTION_BLANK}"]


def test_documents_are_the_ones_that_are_looked_up():
    documents = load_documents("wordnet")
    for name in list(load_wordnet())[::20000]:
        assert gloss_text(load_wordnet()[name]) == documents[documents.numbers[name]].text


def test_both_corpora_are_built_in():
    for name in ("wordnet-examples", "wordnet-questions"):
        corpus = open_corpus(name)
        assert corpus.layout.kind == "pairs"
        assert tuple(corpus.splits) == SPLITS


def test_every_answer_can_be_written_by_the_tokeniser_of_the_corpus():
    """As whole words met twice in training, 39 % of the answers would be unknown."""
    corpus = open_corpus("wordnet-questions")
    tokenizer = tokenizer_for(corpus)
    texts = [each.text for each in corpus.split("test")]
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
