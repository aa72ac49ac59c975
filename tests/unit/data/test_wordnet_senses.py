"""WordNet's examples with the senses of their words: what is told, and what is held out."""

from __future__ import annotations

from lmlab.data.corpus import open_corpus
from lmlab.data.languages.wordnet_senses import examples_by_split, split_of_sentence
from lmlab.data.wordnet.database import load_wordnet
from lmlab.data.wordnet.glosses import tokenize_gloss
from lmlab.data.wordnet.inflections import base_forms


def test_no_text_is_in_two_splits_and_every_held_out_sentence_is_asked():
    found = examples_by_split()
    texts = {name: {each.text for each in split} for name, split in found.items()}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]
    for name in ("validation", "test"):
        assert all(each.mentions for each in found[name])
        assert all(split_of_sentence(text) == name for text in texts[name])
        assert 2000 < len(found[name]) < 2400


def test_a_mention_is_a_form_of_a_word_of_its_synset():
    wordnet, asked = load_wordnet(), 0
    for example in examples_by_split()["test"][:300]:
        for mention in example.mentions:
            synset = wordnet[mention.entity]
            words = example.text[mention.start : mention.end].split()
            lemmas = [tokenize_gloss(lemma).split() for lemma in synset.lemmas]
            assert any(
                len(lemma) == len(words)
                and all(
                    part in base_forms(word, synset.part_of_speech)
                    for part, word in zip(lemma, words, strict=True)
                )
                for lemma in lemmas
            )
            asked += 1
    assert asked >= 300


def test_senses_of_held_out_words_are_partly_known_from_other_sentences():
    """Neither all nor none: those of no other example are known by gloss and relations alone."""
    found = examples_by_split()
    seen = {mention.entity for each in found["train"] for mention in each.mentions}
    asked = [mention.entity for each in found["test"] for mention in each.mentions]
    share = sum(entity in seen for entity in asked) / len(asked)
    assert 0.4 < share < 0.6


def test_definitions_are_in_training_and_tell_nothing():
    by_text = {each.text: each for each in examples_by_split()["train"]}
    definition = by_text["the basic unit of electric current adopted under the systeme "
                         "international d'unites"]  # fmt: skip
    assert definition.mentions == ()


def test_it_is_a_built_in_corpus():
    corpus = open_corpus("wordnet-senses")
    assert corpus.splits["test"].first()[0].mentions
