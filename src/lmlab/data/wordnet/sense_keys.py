"""Sense keys: the identifiers of WordNet's senses in sense-tagged corpora (SemCor)."""

from __future__ import annotations

from collections.abc import Mapping

from lmlab.data.wordnet.synsets import Synset

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
