"""WordNet's example sentences as questions: a word left out, to be found by what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lmlab.data.corpus import SPLITS, Corpus, Layout, Split
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example
from lmlab.data.wordnet.database import (
    data_hash,
    load_wordnet,
)
from lmlab.data.wordnet.glosses import split_of, tokenize_gloss
from lmlab.data.wordnet.inflections import find_lemma
from lmlab.data.wordnet.synsets import Synset

QUESTION_BLANK = "___"
"""What stands for the word that is left out."""
VERSION = 1
"""Raised whenever the questions made from the same WordNet change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClozeQuestion:
    """An example sentence without the word that it is an example of."""

    synset: str
    """Whose example it is."""
    text: str
    """The sentence, tokenised, with a blank."""
    answer: str
    """The lemma that stood there, tokenised, not inflected."""


def cloze_questions(split: str) -> Iterator[ClozeQuestion]:
    """The questions of a split, that of their synset; one that an earlier split has is left out.

    Of 48,345 examples 47,286 hold a lemma of their synset; of several the longest is taken. An
    example that is nothing but the lemma is no question.
    """
    seen = set[str]().union(*map(_texts, SPLITS[: SPLITS.index(split)]))
    for synset, _, examples in load_wordnet().glosses():
        if examples and split_of(synset) == split:
            yield from (
                each for each in synset_questions(load_wordnet()[synset]) if each.text not in seen
            )


@cache
def _texts(split: str) -> frozenset[str]:
    return frozenset(question.text for question in cloze_questions(split))


def synset_questions(synset: Synset) -> Iterator[ClozeQuestion]:
    """The examples of a synset that hold one of its words, with that left out."""
    lemmas = sorted(map(tokenize_gloss, synset.lemmas), key=lambda lemma: -len(lemma.split()))
    for words in (tokenize_gloss(example).split() for example in synset.examples):
        for lemma in lemmas:
            places = find_lemma(words, lemma, synset.part_of_speech)
            if places is not None:
                first, last = places
                blanked = [*words[:first], QUESTION_BLANK, *words[last + 1 :]]
                if len(blanked) > 1:
                    yield ClozeQuestion(synset=synset.id, text=" ".join(blanked), answer=lemma)
                break


def gloss_text(synset: Synset) -> str:
    """The words of a synset and their definition: a document of `retrieval.documents`."""
    title = " , ".join(map(tokenize_gloss, synset.lemmas))
    return tokenize_gloss(f"{title} : {synset.definition}")


@dataclass(frozen=True)
class ClozeQuestionReader:
    """The questions of one split, as what texts are given."""

    split: str
    kind: str
    """Of the texts, for caches."""
    text: Callable[[ClozeQuestion], str]

    def read(self, report: ReadingReport) -> Iterator[Example]:
        for question in cloze_questions(self.split):
            yield Example(self.text(question), condition=question.text, name=question.synset)

    def identity(self) -> str:
        return f"wordnet-{self.kind}:{data_hash()}:{VERSION}:{self.split}"

    def files(self) -> Sequence[Path]:
        return ()


def cloze_question_corpus(
    kind: str, text: Callable[[ClozeQuestion], str], *, description: str
) -> Corpus:
    """Pairs of a question and what `text` makes of it; nothing is read yet.

    Words are pieces by default: synsets are apart, so that of the answers to test questions 39 %
    hold a word that is not met twice in training, and as a whole could be neither read nor written.
    """
    return Corpus(
        name=f"wordnet-{kind}",
        splits={name: Split(ClozeQuestionReader(name, kind, text), name=name) for name in SPLITS},
        layout=Layout(kind="pairs"),
        tokenizer="wordpiece",
        description=description,
    )
