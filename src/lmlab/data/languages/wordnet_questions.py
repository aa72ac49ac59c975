"""WordNet's examples with the word that is left out: open questions to a system with a memory.

    we ___ without water and food for 3 days    →    go

The answer is the lemma, not inflected, and stands in the gloss of its synset, which is one of the
documents called `wordnet`. Questions of a synset are in the split of the synset.
"""

from __future__ import annotations

from lmlab.data.corpus import Corpus
from lmlab.data.wordnet.cloze_questions import (
    ClozeQuestion,
    cloze_question_corpus,
)

DESCRIPTION = "WordNet's examples with a blank, and the word that is left out"


def corpus() -> Corpus:
    """42,491 questions to train on, 1,980 to validate and 2,041 to test."""
    return cloze_question_corpus("questions", answer_of, description=DESCRIPTION)


def answer_of(question: ClozeQuestion) -> str:
    """The word that was left out."""
    return question.answer
