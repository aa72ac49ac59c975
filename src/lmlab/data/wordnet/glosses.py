"""WordNet definitions and examples as a corpus of English sentences: tokenised, split by hash."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lmlab.data.corpus import SPLITS, Corpus, Split
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example
from lmlab.data.wordnet.database import data_hash, load_wordnet

VERSION = 1
"""Incremented whenever the texts made from the same WordNet change, to invalidate caches."""

_TOKEN = re.compile(
    r"(?:[a-z]\.){2,}"  # u.s., e.g.
    r"|\d+(?:[.,]\d+)*(?:st|nd|rd|th|s)?(?!\w|-[a-z])"  # 1,000.5 and 1920s and 1862 in 1862-1949
    r"|'s(?!\w)"  # possessive or clitic verb, a separate word
    r"|\w+(?:[-'/](?!s(?!\w))\w+)*"  # well-known, don't, and/or, 19th-century
    r"|--|\.{2,}|[^\w\s]"
)


def tokenize_gloss(text: str) -> str:
    """Tokenise a gloss: lower case, spaces between words and punctuation."""
    return " ".join(_TOKEN.findall(text.lower()))


def split_by_hash(key: str) -> str:
    """The split of a synset (by its id) or a sentence: 90 % train, 5 % validation, 5 % test.

    Examples are in the split of their synset's definition; no split depends on other synsets.
    """
    bucket = zlib.crc32(key.encode()) % 100
    return "train" if bucket < 90 else "validation" if bucket < 95 else "test"


@dataclass(frozen=True, kw_only=True)
class WordNetReader:
    """Reader of one split of a corpus made from WordNet."""

    name: str
    split: str
    version: int
    """Incremented whenever the texts made from the same WordNet change, to invalidate caches."""
    examples: Callable[[str], Iterable[Example]]
    """The examples of a split, in synset order."""

    def read(self, report: ReadingReport) -> Iterator[Example]:
        yield from self.examples(self.split)

    def identity(self) -> str:
        return f"{self.name}:{data_hash()}:{self.version}:{self.split}"

    def files(self) -> Sequence[Path]:
        return ()


def wordnet_corpus(
    name: str, examples: Callable[[str], Iterable[Example]], *, version: int, **options: Any
) -> Corpus:
    """A corpus made from WordNet, all splits loaded lazily; `options` are fields of `Corpus`."""
    readers = {
        split: WordNetReader(name=name, split=split, version=version, examples=examples)
        for split in SPLITS
    }
    splits = {split: Split(reader, name=split) for split, reader in readers.items()}
    return Corpus(name=name, splits=splits, **options)


@cache
def texts_by_split() -> dict[str, tuple[str, ...]]:
    """The texts of each split; held-out duplicates of an earlier split are left out."""
    texts: dict[str, list[str]] = {name: [] for name in SPLITS}
    for synset, definition, examples in load_wordnet().glosses():
        texts[split_by_hash(synset)] += map(tokenize_gloss, (definition, *examples))
    seen: set[str] = set()
    unique = {}
    for name in SPLITS:
        unique[name] = tuple(text for text in texts[name] if text not in seen)
        seen.update(unique[name])
    return unique
