"""English inflection of lemmas, by rules and WordNet's exception lists."""

from __future__ import annotations

from lmlab.data.wordnet.compact_format import Exceptions

VOWELS = "aeiou"
MAX_COMPARABLE_LETTERS = 8
"""Maximum letters of an adjective compared by an ending: shallow, but not beautiful."""
SIBILANT_ENDINGS = ("s", "x", "z", "ch", "sh")


class Inflections:
    """From a lemma and its part of speech to its inflected forms.

    Nouns have a plural and verbs `-s`, `-ed`, `-ing`; adjectives of one word `-er`, `-est`. In a
    noun of several words the last is inflected, in a verb the first. Irregular forms listed by
    WordNet (wolves, abetted) are added; wrong forms (`goed`) are harmless, as no text has them.
    """

    def __init__(self, exceptions: Exceptions) -> None:
        self._irregular: dict[str, dict[str, list[str]]] = {}
        for part, forms in exceptions.items():
            listed = self._irregular[part] = {}
            for form, lemmas in forms.items():
                for lemma in lemmas:
                    listed.setdefault(lemma, []).append(form.replace("_", " "))

    def __call__(self, lemma: str, part_of_speech: str) -> list[str]:
        """The forms of a lemma in lower case (words separated by spaces), without the lemma."""
        if " " not in lemma:
            return self._forms(lemma, part_of_speech)
        if part_of_speech == "n":
            rest, _, last = lemma.rpartition(" ")
            return [f"{rest} {form}" for form in self._forms(last, "n")]
        if part_of_speech == "v":
            first, _, rest = lemma.partition(" ")
            return [f"{form} {rest}" for form in self._forms(first, "v")]
        return []

    def _forms(self, word: str, part_of_speech: str) -> list[str]:
        make, listed = (
            INFLECTION_RULES.get(part_of_speech),
            self._irregular[part_of_speech].get(word, []),
        )
        return listed if make is None else make(word) + listed


def add_s(word: str) -> str:
    """dog → dogs, box → boxes, city → cities."""
    if word.endswith(SIBILANT_ENDINGS):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in VOWELS:
        return f"{word[:-1]}ies"
    return f"{word}s"


def noun_forms(word: str) -> list[str]:
    """The plural."""
    return [add_s(word)]


def verb_forms(word: str) -> list[str]:
    """Third person, past and present participle: carries, carried, carrying."""
    if word.endswith("e"):
        going = f"{word}ing" if word.endswith(("ee", "oe", "ye")) else f"{word[:-1]}ing"
        return [add_s(word), f"{word}d", going]
    if word.endswith("y") and word[-2:-1] not in VOWELS:
        return [add_s(word), f"{word[:-1]}ied", f"{word}ing"]
    return [add_s(word), f"{word}ed", f"{word}ing"]


def adjective_forms(word: str) -> list[str]:
    """Comparative and superlative of short words: finer, finest; drier, driest."""
    if len(word) > MAX_COMPARABLE_LETTERS:
        return []
    if word.endswith("e"):
        return [f"{word}r", f"{word}st"]
    if word.endswith("y") and word[-2:-1] not in VOWELS:
        return [f"{word[:-1]}ier", f"{word[:-1]}iest"]
    return [f"{word}er", f"{word}est"]


INFLECTION_RULES = {"n": noun_forms, "v": verb_forms, "a": adjective_forms}
