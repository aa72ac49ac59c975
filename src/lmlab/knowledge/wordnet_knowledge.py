"""WordNet as a knowledge base: synsets are entities, inflected lemmas aliases, relations facts.

An entity's name is its synset's id, its title the first lemma, its description the gloss, tokenised
as in the WordNet corpora. Its aliases are its lower-case lemmas and their inflected forms, each
with the lemma's tag count in this sense, smoothed:

    count = times tagged + 1 / number of the sense,

so that untagged senses share the remaining mass in WordNet's order.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

from lmlab.data.wordnet.compact_format import Exceptions, decode_targets
from lmlab.data.wordnet.database import WordNet, load_wordnet
from lmlab.data.wordnet.glosses import tokenize_gloss
from lmlab.data.wordnet.synsets import RELATIONS
from lmlab.knowledge.knowledge_base import Alias, Entity, Fact, KnowledgeBase

_LETTER = re.compile(r"(?:^|\|)[A-Za-z] ")


class SynsetFilter(Protocol):
    """Selects synsets, given the id, the packed senses and whether there are examples."""

    def __call__(self, name: str, senses: str, exampled: bool) -> bool: ...


@cache
def all_synsets() -> KnowledgeBase:
    """All of WordNet: 117,659 entities, 26 relations."""
    return _build(load_wordnet(), lambda name, senses, exampled: True)


@cache
def common_synsets() -> KnowledgeBase:
    """Synsets in use: tagged in some text, or with an example; 44,781 entities."""
    return _build(load_wordnet(), lambda name, senses, exampled: exampled or _is_tagged(senses))


@cache
def letter_synsets() -> KnowledgeBase:
    """Senses of single letters (a unit, an element, a vitamin, the letter) and related synsets: a
    few hundred entities, for experiments."""
    wordnet = load_wordnet()
    letters = {name for name, senses, *_ in wordnet.columns() if _LETTER.search(senses)}
    near = {relation.target for name in letters for relation in wordnet[name].relations}
    return _build(wordnet, lambda name, senses, exampled: name in letters or name in near)


def _is_tagged(senses: str) -> bool:
    return any(sense.split(" ", 3)[2] != "0" for sense in senses.split("|"))


def _build(wordnet: WordNet, selects: SynsetFilter) -> KnowledgeBase:
    with _paused_garbage_collection():
        rows = [row for row in wordnet.columns() if selects(row[0], row[1], row[4])]
        numbers = {row[0]: number for number, row in enumerate(rows)}
        kinds = {symbol: number for number, symbol in enumerate(RELATIONS)}
        forms = Inflections(wordnet.exceptions)
        entities, aliases, facts = [], list[Alias](), list[Fact]()
        for number, (name, senses, relations, definition, _) in enumerate(rows):
            title = senses[: senses.index(" ")].replace("_", " ")
            entities.append(Entity(name=name, title=title, description=tokenize_gloss(definition)))
            for words, count in _alias_counts(senses, name[-1], forms).items():
                aliases.append(Alias(words, number, count))
            # Relations between single words of two synsets hold between the synsets, once.
            for symbol, target in dict.fromkeys(decode_targets(relations)):
                if target in numbers:
                    facts.append(Fact(number, kinds[symbol], numbers[target]))
        return KnowledgeBase(
            entities=tuple(entities),
            relations=tuple(RELATIONS.values()),
            aliases=tuple(aliases),
            facts=tuple(facts),
        )


def _alias_counts(senses: str, part_of_speech: str, forms: Inflections) -> dict[str, float]:
    """Aliases of a synset, its lemmas first, with their counts."""
    names: dict[str, float] = {}
    lemmas: list[tuple[str, float]] = []
    for sense in senses.split("|"):
        lemma, number, count, *_ = sense.split(" ", 3)
        # Most lemmas are letters and spaces, which tokenisation leaves unchanged.
        plain = lemma.lower().replace("_", " ")
        words = plain if plain.replace(" ", "").isalpha() else tokenize_gloss(plain)
        value = int(count) + 1 / int(number)
        names[words] = max(value, names.get(words, 0.0))
        if not (lemma[0].isupper() and " " in words):
            lemmas.append((words, value))
    for words, value in lemmas:
        for form in forms(words, part_of_speech):
            names.setdefault(form, value)
    return names


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would rescan a million new records repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Inflections:
    """From a lemma and its part of speech to its inflected forms.

    Nouns have a plural and verbs `-s`, `-ed`, `-ing`; adjectives of one word `-er`, `-est`. In a
    noun of several words the last is inflected, in a verb the first. Irregular forms listed by
    WordNet (wolves, abetted) are added; wrong forms (`goed`) are harmless, as no text has them.
    """

    def __init__(self, exceptions: Exceptions) -> None:
        self._irregular: dict[str, dict[str, list[str]]] = {}
        for part_of_speech, forms in exceptions.items():
            irregular = self._irregular[part_of_speech] = {}
            for form, lemmas in forms.items():
                for lemma in lemmas:
                    irregular.setdefault(lemma, []).append(form.replace("_", " "))

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
        rule, irregular = (
            INFLECTION_RULES.get(part_of_speech),
            self._irregular[part_of_speech].get(word, []),
        )
        return irregular if rule is None else rule(word) + irregular


VOWELS = "aeiou"


MAX_COMPARABLE_LETTERS = 8
"""Maximum letters of an adjective compared by an ending: shallow, but not beautiful."""


SIBILANT_ENDINGS = ("s", "x", "z", "ch", "sh")


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
        participle = f"{word}ing" if word.endswith(("ee", "oe", "ye")) else f"{word[:-1]}ing"
        return [add_s(word), f"{word}d", participle]
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
