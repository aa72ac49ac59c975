"""Lemma search in texts, inflected forms included."""

from __future__ import annotations

import pytest

from lmlab.data.wordnet import load_wordnet
from lmlab.data.wordnet.glosses import tokenize_gloss
from lmlab.data.wordnet.inflections import base_forms, find_lemma


@pytest.mark.parametrize(
    ("text", "lemma", "part", "span"),
    [
        ("she frosts her hair", "frost", "v", (1, 1)),  # a regular ending
        ("the churches of rome", "church", "n", (1, 1)),
        ("he was stopping there", "stop", "v", (2, 2)),  # an exception: a doubled letter
        ("wolves howl", "wolf", "n", (0, 0)),
        ("we went without water", "go", "v", (1, 1)),
        ("a happier man", "happy", "a", (1, 1)),
        ("he worked harder", "hard", "r", (2, 2)),
        ("they looked up the word", "look up", "v", (1, 2)),  # two-word lemma
        ("two Attorneys General met", "attorney general", "n", (1, 2)),
        ("he ran the run", "run", "v", (3, 3)),  # the lemma itself is preferred to its forms
        ("the children sagged", "sag", "n", None),  # no noun ends in -ged
        ("he held up his end", "start", "n", None),
        ("end", "the end", "n", None),  # a lemma longer than the text
    ],
)
def test_find_lemma_returns_word_positions(
    text: str, lemma: str, part: str, span: tuple[int, int] | None
):
    assert find_lemma(text.split(), lemma, part) == span


def test_base_forms_include_nonword_candidates():
    assert base_forms("Axes", "n") == {"axes", "ax", "axis", "axe"}


def test_lemma_is_found_in_most_wordnet_examples():
    """Every fiftieth synset is checked; the rest use a synonym or a compound."""
    matches = []
    for index, (name, _, examples) in enumerate(load_wordnet().glosses()):
        if index % 50 == 0:
            lemmas = [tokenize_gloss(lemma) for lemma in load_wordnet()[name].lemmas]
            for words in (tokenize_gloss(example).split() for example in examples):
                matches.append(any(find_lemma(words, lemma, name[-1]) for lemma in lemmas))
    assert len(matches) > 500
    assert sum(matches) / len(matches) > 0.96
