"""Lemmatisation by WordNet's morphology (morphy): find inflected forms of a lemma in a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lmlab.data.wordnet.database import load_wordnet
from lmlab.data.wordnet.glosses import tokenize_gloss
from lmlab.data.wordnet.synsets import Synset

ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "n": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "v": (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
}
"""Regular suffixes and their replacement in the lemma: the table of WordNet's morphy, which has
none for adverbs. Doubled letters, -ier and other irregular forms are in the exception lists.
"""


@lru_cache(maxsize=2**17)
def base_forms(word: str, part_of_speech: str) -> frozenset[str]:
    """Candidate lemmas of a word, itself included, in lower case.

    Not all of them exist: `bed` yields `b`, as if it were a past tense.
    """
    word = word.lower()
    irregular = load_wordnet().exceptions.get(part_of_speech, {}).get(word, ())
    regular = (
        word[: -len(ending)] + restored
        for ending, restored in ENDINGS[part_of_speech]
        if len(word) > len(ending) and word.endswith(ending)
    )
    return frozenset((word, *(lemma.replace("_", " ") for lemma in irregular), *regular))


def find_lemma(words: Sequence[str], lemma: str, part_of_speech: str) -> tuple[int, int] | None:
    """First and last word index of a lemma in a text, or None.

    The text is tokenised (`tokenize_gloss`); case is ignored. Exact matches take precedence over
    inflected forms. In a lemma of several words each may be inflected (attorneys general, looked
    up), and they must be adjacent.
    """
    first, *others = lemma.lower().replace("_", " ").split()
    lower = [word.lower() for word in words]
    starts = range(len(lower) - len(others))
    for start in starts:
        if lower[start : start + len(others) + 1] == [first, *others]:
            return start, start + len(others)
    for start in starts:
        if first in base_forms(lower[start], part_of_speech) and all(
            other in base_forms(lower[start + offset], part_of_speech)
            for offset, other in enumerate(others, 1)
        ):
            return start, start + len(others)
    return None


def find_longest_lemma(words: Sequence[str], synset: Synset) -> tuple[str, int, int] | None:
    """The longest lemma of a synset that occurs in a text, and its first and last word index."""
    lemmas = sorted(map(tokenize_gloss, synset.lemmas), key=lambda lemma: -len(lemma.split()))
    for lemma in lemmas:
        if span := find_lemma(words, lemma, synset.part_of_speech):
            return lemma, *span
    return None
