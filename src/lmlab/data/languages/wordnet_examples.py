"""WordNet example sentences with the word blanked out, paired with its gloss: retriever training.

    we ___ without water and food for 3 days    →    survive , last , live , … , go : continue to …

The condition is an example sentence with its word blanked out; the text is the gloss of the synset,
after its lemmas, as in the documents called `wordnet`. Splits are by synset, so that the glosses
that answer held-out questions were never answers in training.
"""

from __future__ import annotations

from lmlab.data.corpus import Corpus
from lmlab.data.wordnet.cloze_questions import ClozeQuestion, cloze_question_corpus, gloss_text
from lmlab.data.wordnet.database import load_wordnet

DESCRIPTION = "WordNet's examples with a blank, and the gloss of the word that is left out"


def corpus() -> Corpus:
    """42,491 questions for training, 1,980 for validation and 2,041 for test."""
    return cloze_question_corpus("examples", document_of, description=DESCRIPTION)


def document_of(question: ClozeQuestion) -> str:
    """The gloss that answers the question."""
    return gloss_text(load_wordnet()[question.synset])
