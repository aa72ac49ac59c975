"""WordNet cloze questions: example sentences with the blanked-out word as the answer.

    we ___ without water and food for 3 days    →    go

Open questions for a retrieval-augmented system: the answer is the uninflected lemma, and occurs in
the gloss of its synset, one of the documents called `wordnet`. Splits are by synset.
"""

from __future__ import annotations

from operator import attrgetter

from lmlab.data.corpus import Corpus
from lmlab.data.wordnet.cloze_questions import cloze_question_corpus

DESCRIPTION = "WordNet's examples with a blank, and the word that is left out"


def corpus() -> Corpus:
    """42,491 questions for training, 1,980 for validation and 2,041 for test."""
    return cloze_question_corpus("questions", attrgetter("answer"), description=DESCRIPTION)
