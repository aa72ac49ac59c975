"""Compact WordNet file, decoded: one gzipped line per synset, then one per irregular form.

    lmlab-wordnet 1
    02084071-n . 5 ⇥ dog 1 42 0|domestic_dog 1 … ⇥ @ 02083346-n|… ⇥ definition ⇥ example ⇥ example
                                                      (an empty line)
    n ⇥ wolves ⇥ wolf

After the id follow `s` for a satellite adjective, else a dot, and the lexicographer file number. A
sense is its lemma, number, count, lex_id and marker; a relation its pointer symbol, target, word
and target's word, without the words for whole synsets. The output is deterministic.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping

from lmlab.core.errors import UserError
from lmlab.data.wordnet.synsets import RELATIONS, Relation, Sense, Synset

FILE_HEADER = "lmlab-wordnet 1"

Exceptions = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Irregular forms by part of speech: `exceptions["n"]["wolves"] == ("wolf",)`."""


def decode_synset(line: str) -> Synset:
    """Decode a line; `scripts/build_wordnet.py` encodes them."""
    head, senses, relations, definition, *examples = line.split("\t")
    name, satellite, file = head.split(" ")
    return Synset(
        id=name,
        satellite=satellite == "s",
        file=int(file),
        senses=decode_senses(senses),
        definition=definition,
        examples=tuple(examples),
        relations=tuple(map(_decode_relation, relations.split("|"))) if relations else (),
    )


def decode_numbers(column: str) -> list[tuple[str, int]]:
    """Only lemma and sense number of each sense, from the second column of a line."""
    fields = (text.split(" ", 2) for text in column.split("|"))
    return [(lemma.replace("_", " "), int(number)) for lemma, number, _ in fields]


def decode_senses(column: str) -> tuple[Sense, ...]:
    """The senses, from the second column of a line."""
    return tuple(map(_decode_sense, column.split("|")))


def decode_targets(column: str) -> list[tuple[str, str]]:
    """Only pointer symbol and target of each relation, from the third column of a line."""
    if not column:
        return []
    fields = (text.split(" ", 2) for text in column.split("|"))
    return [(field[0], field[1]) for field in fields]


def read_compact(data: bytes) -> tuple[dict[str, str], Exceptions]:
    """The undecoded lines of the synsets by id, and the irregular forms."""
    text = gzip.decompress(data).decode()
    header, _, body = text.partition("\n")
    if header != FILE_HEADER:
        raise UserError(f"expected a file that begins with {FILE_HEADER!r}, got {header[:40]!r}.")
    synsets, _, forms = body.partition("\n\n")
    exceptions: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in forms.splitlines():
        part, form, *lemmas = line.split("\t")
        exceptions.setdefault(part, {})[form] = tuple(lemmas)
    return {line[: line.index(" ")]: line for line in synsets.split("\n")}, exceptions


def _decode_sense(text: str) -> Sense:
    lemma, number, count, lex_id, *marker = text.split(" ")
    return Sense(
        lemma=lemma.replace("_", " "),
        number=int(number),
        count=int(count),
        lex_id=int(lex_id),
        marker=marker[0] if marker else "",
    )


def _decode_relation(text: str) -> Relation:
    symbol, target, *words = text.split(" ")
    word, target_word = map(int, words) if words else (0, 0)
    return Relation(kind=RELATIONS[symbol], target=target, word=word, target_word=target_word)
