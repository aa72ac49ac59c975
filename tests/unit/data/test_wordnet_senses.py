"""WordNet examples with sense annotations: mentions and held-out splits."""

from __future__ import annotations

from lmlab.data.corpus import open_corpus
from lmlab.data.languages.wordnet_senses import examples_by_split
from lmlab.data.wordnet.database import load_wordnet
from lmlab.data.wordnet.glosses import split_by_hash, tokenize_gloss
from lmlab.data.wordnet.inflections import base_forms


def test_splits_are_disjoint_and_held_out_texts_have_mentions():
    splits = examples_by_split()
    texts = {name: {example.text for example in split} for name, split in splits.items()}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]
    for name in ("validation", "test"):
        assert all(example.mentions for example in splits[name])
        assert all(split_by_hash(text) == name for text in texts[name])
        assert 2000 < len(splits[name]) < 2400


def test_mentions_are_inflections_of_their_synset_lemmas():
    wordnet, checked = load_wordnet(), 0
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
            checked += 1
    assert checked >= 300


def test_about_half_of_test_senses_occur_in_training():
    """The other senses are known only by gloss and relations."""
    splits = examples_by_split()
    train_senses = {mention.entity for example in splits["train"] for mention in example.mentions}
    test_senses = [mention.entity for example in splits["test"] for mention in example.mentions]
    share = sum(entity in train_senses for entity in test_senses) / len(test_senses)
    assert 0.4 < share < 0.6


def test_definitions_are_training_texts_without_mentions():
    by_text = {example.text: example for example in examples_by_split()["train"]}
    definition = by_text["the basic unit of electric current adopted under the systeme "
                         "international d'unites"]  # fmt: skip
    assert definition.mentions == ()


def test_wordnet_senses_is_a_builtin_corpus():
    corpus = open_corpus("wordnet-senses")
    assert corpus.splits["test"].first()[0].mentions
