"""WSD corpus `wordnet-senses`: see `lmlab.data.languages.wordnet_senses`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lmlab.data.corpus import SPLITS, Corpus, Split
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example, Mention
from lmlab.data.wordnet.database import WordNet, data_hash, load_wordnet
from lmlab.data.wordnet.glosses import tokenize_gloss
from lmlab.data.wordnet.inflections import find_lemma

VERSION = 1
"""Incremented whenever the texts made from the same WordNet change."""
MIN_WORDS = 3
"""Minimum words of a held-out sentence; shorter ones say little about the sense."""


def split_of_sentence(text: str) -> str:
    """The split of a tokenised sentence, by its hash: 90 % train, 5 % validation, 5 % test."""
    place = zlib.crc32(text.encode()) % 100
    return "train" if place < 90 else "validation" if place < 95 else "test"


@dataclass(frozen=True)
class SenseExampleReader:
    """Reader of the sentences of one split; for training also the definitions."""

    split: str

    def read(self, report: ReadingReport) -> Iterator[Example]:
        yield from examples_by_split()[self.split]

    def identity(self) -> str:
        return f"wordnet-senses:{data_hash()}:{VERSION}:{self.split}"

    def files(self) -> Sequence[Path]:
        return ()


def sense_corpus(description: str) -> Corpus:
    """The corpus of all splits; loaded lazily."""
    return Corpus(
        name="wordnet-senses",
        splits={name: Split(SenseExampleReader(name), name=name) for name in SPLITS},
        tokenizer="word",
        min_count=2,
        description=description,
    )


@cache
def examples_by_split() -> dict[str, tuple[Example, ...]]:
    """The texts of each split, in synset order; no text is in two splits."""
    wordnet = load_wordnet()
    found: dict[str, dict[str, tuple[Mention, ...]]] = {name: {} for name in SPLITS}
    for synset, definition, examples in wordnet.glosses():
        found["train"].setdefault(tokenize_gloss(definition), ())
        for text in map(tokenize_gloss, examples) if examples else ():
            mention = _mention(wordnet, synset, text)
            split = split_of_sentence(text)
            if mention is None or len(text.split()) < MIN_WORDS:
                split = "train"  # unusable as a test item
            texts = found[split]
            texts[text] = _with(texts.get(text, ()), mention)
    for name in SPLITS[1:]:
        for text in found[name].keys() & found["train"].keys():
            del found[name][text]  # a definition that is also an example
    return {
        name: tuple(Example(text, mentions=told) for text, told in texts.items() if text)
        for name, texts in found.items()
    }


def _mention(wordnet: WordNet, synset: str, text: str) -> Mention | None:
    """Span of the synset's lemma in one of its examples: the longest, inflected or not."""
    words, made = text.split(), wordnet[synset]
    lemmas = sorted(map(tokenize_gloss, made.lemmas), key=lambda lemma: -len(lemma.split()))
    for lemma in lemmas:
        places = find_lemma(words, lemma, made.part_of_speech)
        if places is not None:
            first, last = places
            start = sum(len(word) + 1 for word in words[:first])
            return Mention(start, start + len(" ".join(words[first : last + 1])), synset)
    return None


def _with(mentions: tuple[Mention, ...], one: Mention | None) -> tuple[Mention, ...]:
    """Add a mention unless it overlaps one: a sentence may illustrate several synsets."""
    if one is None or any(one.start < each.end and each.start < one.end for each in mentions):
        return mentions
    return tuple(sorted((*mentions, one), key=lambda mention: mention.start))


DESCRIPTION = "WordNet's example sentences with the sense of a word in each, and its definitions"


def corpus() -> Corpus:
    """Definitions and 90 % of the sentences for training, 5 % each held out; with mentions."""
    return sense_corpus(DESCRIPTION)
