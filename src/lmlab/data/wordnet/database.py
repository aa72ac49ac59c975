"""WordNet database: synsets by id, senses by lemma, sense keys; loads the shipped WordNet 3.0."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files

from lmlab.data.wordnet import compact_format
from lmlab.data.wordnet.synsets import PARTS_OF_SPEECH, Sense, Synset, sense_key


class WordNet(Mapping[str, Synset]):
    """The synsets of WordNet by id, in file order (Fellbaum 1998).

    A synset is decoded on access (about 20 µs, more with hundreds of relations) and not cached, so
    that opening WordNet takes a fraction of a second.
    """

    def __init__(self, lines: Mapping[str, str], exceptions: compact_format.Exceptions) -> None:
        self._lines = lines
        self.exceptions = exceptions
        """Irregular forms by part of speech: `exceptions["n"]["wolves"] == ("wolf",)`."""

    def __getitem__(self, name: str) -> Synset:
        return compact_format.decode_synset(self._lines[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def glosses(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Id, definition and examples of each synset, without decoding the rest."""
        for name, line in self._lines.items():
            _, _, _, definition, *examples = line.split("\t")
            yield name, definition, tuple(examples)

    def senses(self, part_of_speech: str) -> Iterator[tuple[str, tuple[Sense, ...]]]:
        """Id and senses of each synset of a part of speech, without decoding the rest."""
        for name, line in self._lines.items():
            if name[-1] == part_of_speech:
                yield name, compact_format.decode_senses(line.split("\t", 2)[1])

    def columns(self) -> Iterator[tuple[str, str, str, str, bool]]:
        """Undecoded columns of each synset, for scans that need a part of each.

        Id, senses and relations as packed by `compact_format`, definition, and whether it has
        examples.
        """
        for name, line in self._lines.items():
            _, senses, relations, definition, *examples = line.split("\t")
            yield name, senses, relations, definition, bool(examples)

    @cached_property
    def lemmas(self) -> Mapping[str, tuple[str, ...]]:
        """Synset ids by lemma: nouns first, then verbs, adjectives, adverbs, by sense number.

        Lemmas are lower-cased, so that capitalised words are found.
        """
        order = {part: rank for rank, part in enumerate(PARTS_OF_SPEECH)}
        found_senses: dict[str, set[tuple[int, int, str]]] = {}
        for name, line in self._lines.items():
            for lemma, number in compact_format.decode_numbers(line.split("\t", 2)[1]):
                found_senses.setdefault(lemma.lower(), set()).add((order[name[-1]], number, name))
        return {
            lemma: tuple(name for *_, name in sorted(senses))
            for lemma, senses in found_senses.items()
        }

    def find(self, lemma: str, part_of_speech: str | None = None) -> tuple[Synset, ...]:
        """The synsets of a lemma, most frequent sense first; empty for an unknown lemma."""
        names = self.lemmas.get(lemma.lower().replace("_", " "), ())
        return tuple(self[name] for name in names if part_of_speech in (None, name[-1]))

    def sense_key(self, synset: Synset, word: int) -> str:
        """The sense key of a synset's word, counted from 1: `dog%1:05:00::`."""
        return sense_key(synset, word, self)


@cache
def load_wordnet() -> WordNet:
    """The shipped WordNet 3.0; loaded once, then shared."""
    return WordNet(*compact_format.read_compact(_data()))


@cache
def data_hash() -> str:
    """Hash of the shipped file."""
    return hashlib.blake2b(_data(), digest_size=16).hexdigest()


def _data() -> bytes:
    return files(__package__).joinpath("wordnet.gz").read_bytes()
