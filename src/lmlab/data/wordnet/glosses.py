"""WordNet's definitions and examples as a corpus of English sentences."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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


def split_of(synset: str) -> str:
    """The split of a synset's texts, by a hash of its id: 90 % train, 5 % validation, 5 % test.

    Examples are in the split of their definition, and a synset's split does not depend on the other
    synsets.
    """
    place = zlib.crc32(synset.encode()) % 100
    return "train" if place < 90 else "validation" if place < 95 else "test"


@dataclass(frozen=True)
class GlossReader:
    """Reader of the definitions and examples of one split, in synset order."""

    split: str

    def read(self, report: ReadingReport) -> Iterator[Example]:
        yield from map(Example, texts_by_split()[self.split])

    def identity(self) -> str:
        return f"wordnet:{data_hash()}:{VERSION}:{self.split}"

    def files(self) -> Sequence[Path]:
        return ()


def gloss_corpus(description: str) -> Corpus:
    """The corpus of all splits; loaded lazily.

    More than a third of the words occur once in 1.5 million, so words seen once in training are
    <unk> by default.
    """
    return Corpus(
        name="wordnet",
        splits={name: Split(GlossReader(name), name=name) for name in SPLITS},
        tokenizer="word",
        min_count=2,
        description=description,
    )


@cache
def texts_by_split() -> dict[str, tuple[str, ...]]:
    """The texts of each split; held-out duplicates of an earlier split are left out."""
    texts: dict[str, list[str]] = {name: [] for name in SPLITS}
    for synset, definition, examples in load_wordnet().glosses():
        texts[split_of(synset)] += map(tokenize_gloss, (definition, *examples))
    seen: set[str] = set()
    kept = {}
    for name in SPLITS:
        kept[name] = tuple(text for text in texts[name] if text not in seen)
        seen.update(kept[name])
    return kept
