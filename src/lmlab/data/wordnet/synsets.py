"""WordNet's data model: synsets, senses, relations and sense keys (Fellbaum 1998)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TYPES = {"n": 1, "v": 2, "a": 3, "r": 4}
_SATELLITE = 5


def sense_key(synset: Synset, word: int, synsets: Mapping[str, Synset]) -> str:
    """The sense key of a synset's word (from 1), as in senseidx(5WN).

    lemma%type:file:lex_id:head:head_id, where head is the first word of a satellite's head
    adjective, with its marker, and empty otherwise: `arid%5:00:00:dry:00`,
    `above%5:00:00:preceding(a):00`.
    """
    sense = synset.senses[word - 1]
    kind, head = _TYPES[synset.part_of_speech], ":"
    if synset.satellite:
        leader = synsets[synset.related("similar")[0]].senses[0]
        marker = f"({leader.marker})" if leader.marker else ""
        kind, head = _SATELLITE, f"{_in_key(leader.lemma)}{marker}:{leader.lex_id:02}"
    return f"{_in_key(sense.lemma)}%{kind}:{synset.file:02}:{sense.lex_id:02}:{head}"


def _in_key(lemma: str) -> str:
    return lemma.replace(" ", "_").lower()


PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
"""The part-of-speech letter of a synset id, and the suffix of WordNet's files."""

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
    """Sense number within lemma and part of speech, from 1, most frequent first."""
    count: int
    """Number of occurrences in sense-tagged text (mostly SemCor)."""
    lex_id: int
    """Distinguishes the senses of a lemma in one lexicographer file; part of the sense key."""
    marker: str = ""
    """Syntactic position of an adjective: `p` predicate, `a` prenominal, `ip` postnominal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """A pointer from a synset, or from one of its words, to another."""

    kind: str
    """A name of `RELATIONS`."""
    target: str
    """Id of the target synset."""
    word: int = 0
    """Index of the source sense in its synset, from 1; 0 for the whole synset."""
    target_word: int = 0
    """Index of the target sense in its synset, from 1; 0 for the whole synset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Synset:
    """A synset: a meaning, its words, its gloss and its relations."""

    id: str
    """Offset in WordNet 3.0's files and part of speech, the usual notation: `02084071-n`."""
    satellite: bool
    """Whether it is a satellite of a head adjective (`&`), as arid is of dry."""
    file: int
    """Number of the lexicographer file, a coarse semantic class: 5 animals, 18 persons …"""
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
        """Ids of the targets of this kind of relation, from the synset or its words."""
        return tuple(relation.target for relation in self.relations if relation.kind == kind)
