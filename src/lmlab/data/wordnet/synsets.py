"""What WordNet holds: synsets with their senses, glosses and relations (Fellbaum 1998)."""

from __future__ import annotations

from dataclasses import dataclass

PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
"""The letter that ends a synset's id, and WordNet's name for its files."""

RELATIONS = {
    "!": "antonym",
    "@": "hypernym",
    "@i": "instance hypernym",
    "~": "hyponym",
    "~i": "instance hyponym",
    "#m": "member holonym",
    "#s": "substance holonym",
    "#p": "part holonym",
    "%m": "member meronym",
    "%s": "substance meronym",
    "%p": "part meronym",
    "=": "attribute",
    "+": "derivation",
    ";c": "topic",
    "-c": "member of topic",
    ";r": "region",
    "-r": "member of region",
    ";u": "usage",
    "-u": "member of usage",
    "*": "entailment",
    ">": "cause",
    "^": "see also",
    "$": "verb group",
    "&": "similar",
    "<": "participle of",
    "\\": "pertains to",
}
"""WordNet's pointer symbols and the names of the relations, subject to object.

`dog @ canine`: canine is the hypernym of dog; `quickly \\ quick`: an adverb pertains to the
adjective it is made of.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sense:
    """One word of a synset: a lemma in one of its meanings."""

    lemma: str
    """As written, with spaces: `domestic dog`, `Canis familiaris`."""
    number: int
    """Which sense of its lemma and part of speech this is, from 1, the most frequent first."""
    count: int
    """How often it was met in the texts whose senses were tagged (mostly SemCor)."""
    lex_id: int
    """Tells the senses of a lemma in one lexicographer file apart; part of the sense key."""
    marker: str = ""
    """Where an adjective must stand: `p` predicate, `a` before the noun, `ip` right after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """A pointer from a synset, or from one word of it, to another."""

    kind: str
    """A name of `RELATIONS`."""
    target: str
    """Id of the synset it leads to."""
    word: int = 0
    """Which sense of the synset it starts from, from 1; 0 means the synset as a whole."""
    target_word: int = 0
    """Which sense of the target it leads to; 0 means the synset as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Synset:
    """A meaning, the words that have it, its gloss and how it is related to others."""

    id: str
    """Offset in WordNet 3.0's files and part of speech, as others write it: `02084071-n`."""
    satellite: bool
    """Whether it is an adjective that leans on a head adjective (`&`), as arid does on dry."""
    file: int
    """Number of the lexicographer file, a coarse class of meaning: 5 animals, 18 persons …"""
    senses: tuple[Sense, ...]
    definition: str
    examples: tuple[str, ...]
    relations: tuple[Relation, ...]

    @property
    def part_of_speech(self) -> str:
        """n, v, a or r."""
        return self.id[-1]

    @property
    def lemmas(self) -> tuple[str, ...]:
        """Its words."""
        return tuple(sense.lemma for sense in self.senses)

    def related(self, kind: str) -> tuple[str, ...]:
        """Ids of the synsets that relations of this kind lead to, from it or from its words."""
        return tuple(relation.target for relation in self.relations if relation.kind == kind)
