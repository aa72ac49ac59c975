"""Cloze questions from WordNet's example sentences: recover the blanked-out word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lmlab.data.corpus import SPLITS, Corpus, Layout, Split
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example
from lmlab.data.wordnet.database import data_hash, load_wordnet
from lmlab.data.wordnet.glosses import split_of, tokenize_gloss
from lmlab.data.wordnet.inflections import find_lemma
from lmlab.data.wordnet.synsets import Synset

QUESTION_BLANK = "___"
"""The blank in place of the word."""
VERSION = 1
"""Incremented whenever the questions made from the same WordNet change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClozeQuestion:
    """An example sentence with the word it illustrates blanked out."""

    synset: str
    """Id of the synset it illustrates."""
    text: str
    """The sentence, tokenised, with a blank."""
    answer: str
    """The blanked-out lemma, tokenised, uninflected."""


def cloze_questions(split: str) -> Iterator[ClozeQuestion]:
    """The questions of a split, by synset; duplicates of an earlier split are left out.

    Of 48,345 examples 47,286 contain a lemma of their synset; of several the longest is taken. An
    example that consists of the lemma only is skipped.
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
    """Cloze questions from the examples of a synset that contain one of its lemmas."""
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
    """The lemmas of a synset and their definition: a document of `retrieval.documents`."""
    title = " , ".join(map(tokenize_gloss, synset.lemmas))
    return tokenize_gloss(f"{title} : {synset.definition}")


@dataclass(frozen=True)
class ClozeQuestionReader:
    """Reader of the questions of one split, as conditions of texts."""

    split: str
    kind: str
    """Kind of the texts, for cache keys."""
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
    """Corpus of pairs: a question, and the target that `text` makes of it; loaded lazily.

    Subword tokens by default: splits are by synset, so 39 % of the answers to test questions
    contain a word seen less than twice in training, which a word-level model cannot represent.
    """
    return Corpus(
        name=f"wordnet-{kind}",
        splits={name: Split(ClozeQuestionReader(name, kind, text), name=name) for name in SPLITS},
        layout=Layout(kind="pairs"),
        tokenizer="wordpiece",
        description=description,
    )
