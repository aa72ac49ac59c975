"""WordNet's examples with the documents that answer them: what a retriever learns from.

    we ___ without water and food for 3 days    →    survive , last , live , … , go : continue to …

What a text is given is an example sentence with its word left out; the text is the gloss of the
synset, after the words that it defines, as in the documents called `wordnet`. The questions of a
synset are in the split of the synset, so that those held out ask for glosses never seen as answers.
"""

from __future__ import annotations

from lmlab.data.corpus import Corpus
from lmlab.data.wordnet.cloze_questions import (
    ClozeQuestion,
    cloze_question_corpus,
    gloss_text,
)
from lmlab.data.wordnet.database import load_wordnet

DESCRIPTION = "WordNet's examples with a blank, and the gloss of the word that is left out"


def corpus() -> Corpus:
    """42,491 questions to train on, 1,980 to validate and 2,041 to test."""
    return cloze_question_corpus("examples", document_of, description=DESCRIPTION)


def document_of(question: ClozeQuestion) -> str:
    """The gloss that the question asks for."""
    return gloss_text(load_wordnet()[question.synset])
