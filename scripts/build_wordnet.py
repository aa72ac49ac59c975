"""Build the compact WordNet file of the package from Princeton's WordNet 3.0 files.

apt-get install wordnet-base
python scripts/build_wordnet.py /usr/share/wordnet src/lmlab/data/wordnet/wordnet.gz

The files (`data.noun`, `index.noun`, `cntlist.rev`, `noun.exc` …) are described in the manual pages
wndb(5WN), cntlist(5WN) and senseidx(5WN). Verb frames and their example sentences are left
out.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.data.wordnet.compact_format import FILE_HEADER, Exceptions
from lmlab.data.wordnet.synsets import (
    PARTS_OF_SPEECH,
    RELATIONS,
    Relation,
    Sense,
    Synset,
    sense_key,
)

_MARKER = re.compile(r"\((p|a|ip)\)$")
_SYMBOLS = {name: symbol for symbol, name in RELATIONS.items()}
_QUOTED = re.compile(r'"([^"]*)"')


def read_synsets(folder: Path) -> list[Synset]:
    """All synsets in file order: nouns, verbs, adjectives, adverbs."""
    synsets: dict[str, Synset] = {}
    for letter, part in PARTS_OF_SPEECH.items():
        numbers = _sense_numbers(folder / f"index.{part}")
        for line in _records(folder / f"data.{part}"):
            synset = parse_synset(line, letter, numbers)
            synsets[synset.id] = synset
    counts = _counts(folder / "cntlist.rev")
    return [_with_counts(synset, counts, synsets) for synset in synsets.values()]


def read_exceptions(folder: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Irregular forms and their lemmas, by part of speech: `wolves` has the lemma `wolf`."""
    exceptions: dict[str, dict[str, tuple[str, ...]]] = {}
    for letter, part in PARTS_OF_SPEECH.items():
        forms = exceptions[letter] = {}
        for line in _lines(folder / f"{part}.exc"):
            form, *lemmas = (word.replace("_", " ") for word in line.split())
            # A form may occur twice: `axes` is the plural of axis and of axe.
            forms[form] = tuple(dict.fromkeys((*forms.get(form, ()), *lemmas)))
    return exceptions


def parse_synset(line: str, letter: str, numbers: dict[tuple[str, str], int]) -> Synset:
    """Parse a line of `data.*`: offset, file, type, words, pointers, frames, gloss; counts 0."""
    data, gloss = line.split(" | ", 1)
    offset, file, kind, size, *fields = data.split()
    words, fields = fields[: 2 * int(size, 16)], fields[2 * int(size, 16) :]
    senses = tuple(
        _parse_sense(word, lex_id, offset, numbers)
        for word, lex_id in zip(words[::2], words[1::2], strict=True)
    )
    pointers = fields[1 : 1 + 4 * int(fields[0])]
    relations = tuple(
        _parse_relation(*pointers[start : start + 4]) for start in range(0, len(pointers), 4)
    )
    definition, examples = split_gloss(gloss)
    return Synset(
        id=f"{offset}-{letter}",
        satellite=kind == "s",
        file=int(file),
        senses=senses,
        definition=definition,
        examples=examples,
        relations=relations,
    )


def split_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    """Split a gloss into definition and examples, without quotation marks or author names.

    An example is a quotation after a semicolon or similar punctuation; words quoted inside the
    definition remain part of it. Twenty glosses have an unbalanced quotation mark: in these, each
    part that begins or ends with one is an example.
    """
    gloss = gloss.strip()
    if gloss.count('"') % 2:
        return _split_unbalanced(gloss)
    quotes = [
        quote for quote in _QUOTED.finditer(gloss) if _is_example_position(gloss[: quote.start()])
    ]
    definition = gloss[: quotes[0].start()] if quotes else gloss
    return definition.strip(" ;:,"), tuple(quote[1].strip() for quote in quotes)


def _split_unbalanced(gloss: str) -> tuple[str, tuple[str, ...]]:
    first, *parts = (part.strip() for part in gloss.split(";"))
    examples = [part for part in parts if part.startswith('"') or part.endswith('"')]
    definition = "; ".join([first, *(part for part in parts if part not in examples)])
    return definition.strip(' "'), tuple(example.strip('" ') for example in examples)


def _is_example_position(before: str) -> bool:
    """Whether a quotation after this text is an example rather than part of the definition."""
    before = before.rstrip()
    if before.count("(") > before.count(")"):
        return False
    return not before or before[-1] in ';:,.)"' or before.endswith('" or')


def _parse_sense(word: str, lex_id: str, offset: str, numbers: dict[tuple[str, str], int]) -> Sense:
    marker = _MARKER.search(word)
    lemma = word[: marker.start()] if marker else word
    return Sense(
        lemma=lemma.replace("_", " "),
        number=numbers[lemma.lower(), offset],
        count=0,
        lex_id=int(lex_id, 16),
        marker=marker[1] if marker else "",
    )


def _parse_relation(symbol: str, offset: str, letter: str, words: str) -> Relation:
    return Relation(
        kind=RELATIONS[symbol],
        target=f"{offset}-{letter}",
        word=int(words[:2], 16),
        target_word=int(words[2:], 16),
    )


def _with_counts(synset: Synset, counts: dict[str, int], synsets: dict[str, Synset]) -> Synset:
    senses = tuple(
        replace(sense, count=counts.get(sense_key(synset, word, synsets), 0))
        for word, sense in enumerate(synset.senses, 1)
    )
    return replace(synset, senses=senses)


def _sense_numbers(path: Path) -> dict[tuple[str, str], int]:
    """Rank of each synset among the senses of a lemma, by lemma and offset.

    A line of `index.*` ends with the offsets of the lemma's synsets, most frequent first.
    """
    numbers = {}
    for line in _records(path):
        lemma, _, synsets, *rest = line.split()
        for number, offset in enumerate(rest[-int(synsets) :], 1):
            numbers[lemma, offset] = number
    return numbers


def _counts(path: Path) -> dict[str, int]:
    """Tag count of each sense, by sense key; the lines hold key, sense number, count."""
    return {key: int(count) for key, _, count in (line.split() for line in _lines(path))}


def _records(path: Path) -> Iterator[str]:
    """The lines of a file without the licence header, which is indented by two spaces."""
    return (line for line in _lines(path) if not line.startswith("  "))


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"WordNet's file {path.name} cannot be read in {path.parent} ({error.strerror}); try "
            "/usr/share/wordnet, the folder of Debian's package wordnet-base."
        ) from error


def write_compact(path: Path, synsets: Iterable[Synset], exceptions: Exceptions) -> None:
    """Write the compact file; reproducible, without timestamps or paths."""
    lines = [FILE_HEADER, *map(encode_synset, synsets), ""]
    for part, forms in exceptions.items():
        lines += ["\t".join([part, form, *lemmas]) for form, lemmas in forms.items()]
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def encode_synset(synset: Synset) -> str:
    """Encode a synset as a line."""
    head = f"{synset.id} {'s' if synset.satellite else '.'} {synset.file}"
    senses = "|".join(map(_encode_sense, synset.senses))
    relations = "|".join(map(_encode_relation, synset.relations))
    return "\t".join([head, senses, relations, synset.definition, *synset.examples])


def _encode_sense(sense: Sense) -> str:
    marker = f" {sense.marker}" if sense.marker else ""
    lemma = sense.lemma.replace(" ", "_")
    return f"{lemma} {sense.number} {sense.count} {sense.lex_id}{marker}"


def _encode_relation(relation: Relation) -> str:
    words = f" {relation.word} {relation.target_word}" if relation.word else ""
    return f"{_SYMBOLS[relation.kind]} {relation.target}{words}"


def main() -> None:
    """Read the folder, write the file and print its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with data.noun, index.noun, …")
    parser.add_argument("out", type=Path, help="the compact file to write")
    arguments = parser.parse_args()
    synsets = read_synsets(arguments.folder)
    write_compact(arguments.out, synsets, read_exceptions(arguments.folder))
    print(f"{arguments.out}: {len(synsets):,} synsets, {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
