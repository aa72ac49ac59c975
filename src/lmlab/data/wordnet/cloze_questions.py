"""Cloze questions from WordNet's example sentences: recover the blanked-out word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from lmlab.data.corpus import SPLITS, Corpus, Layout
from lmlab.data.readers import Example
from lmlab.data.wordnet.database import load_wordnet
from lmlab.data.wordnet.glosses import split_by_hash, tokenize_gloss, wordnet_corpus
from lmlab.data.wordnet.inflections import find_longest_lemma
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
        if examples and split_by_hash(synset) == split:
            yield from (
                question
                for question in synset_questions(load_wordnet()[synset])
                if question.text not in seen
            )


@cache
def _texts(split: str) -> frozenset[str]:
    return frozenset(question.text for question in cloze_questions(split))


def synset_questions(synset: Synset) -> Iterator[ClozeQuestion]:
    """Cloze questions from the examples of a synset that contain one of its lemmas."""
    for words in (tokenize_gloss(example).split() for example in synset.examples):
        if match := find_longest_lemma(words, synset):
            lemma, first, last = match
            blanked = [*words[:first], QUESTION_BLANK, *words[last + 1 :]]
            if len(blanked) > 1:
                yield ClozeQuestion(synset=synset.id, text=" ".join(blanked), answer=lemma)


def gloss_text(synset: Synset) -> str:
    """The lemmas of a synset and their definition: a document of `retrieval.documents`."""
    title = " , ".join(map(tokenize_gloss, synset.lemmas))
    return tokenize_gloss(f"{title} : {synset.definition}")


def cloze_question_corpus(
    kind: str, text: Callable[[ClozeQuestion], str], *, description: str
) -> Corpus:
    """Corpus of pairs: a question, and the target that `text` makes of it; loaded lazily.

    Subword tokens by default: splits are by synset, so 39 % of the answers to test questions
    contain a word seen less than twice in training, which a word-level model cannot represent.
    """

    def examples(split: str) -> Iterator[Example]:
        for question in cloze_questions(split):
            yield Example(text(question), condition=question.text, name=question.synset)

    return wordnet_corpus(
        f"wordnet-{kind}",
        examples,
        version=VERSION,
        layout=Layout(kind="pairs"),
        tokenizer="wordpiece",
        description=description,
    )
