"""Inflected forms: which words of a text may be a lemma, as WordNet's own morphology has it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lmlab.data.wordnet.database import load_wordnet

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
"""Regular endings and what stands there in the lemma: the table of WordNet's morphy, which has none
for adverbs. Doubled letters, -ier and whatever else is irregular are exceptions there."""


@lru_cache(maxsize=2**17)
def base_forms(word: str, part_of_speech: str) -> frozenset[str]:
    """What a word may be a form of, itself among them, in lower case.

    Not all of them are words: `bed` may be the past of `b`, until somebody looks for that lemma.
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
    """The first and the last place of a lemma among the words of a text, or None.

    The text is tokenised (`glosses.tokenize`); case does not matter. Words that are just the lemma
    go before forms of it. Of a lemma of several words each may be inflected (attorneys general,
    looked up), and they stand side by side.
    """
    first, *others = lemma.lower().replace("_", " ").split()
    lower = [word.lower() for word in words]
    starts = range(len(lower) - len(others))
    for start in starts:
        if lower[start : start + len(others) + 1] == [first, *others]:
            return start, start + len(others)
    for start in starts:
        if first in base_forms(lower[start], part_of_speech) and all(
            other in base_forms(lower[start + place], part_of_speech)
            for place, other in enumerate(others, 1)
        ):
            return start, start + len(others)
    return None
