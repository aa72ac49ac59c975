"""WSD corpus `wordnet-senses`: see `lmlab.data.wordnet.sense_corpus`."""

from __future__ import annotations

from lmlab.data.corpus import Corpus
from lmlab.data.wordnet.sense_corpus import sense_corpus

DESCRIPTION = "WordNet's example sentences with the sense of a word in each, and its definitions"


def corpus() -> Corpus:
    """Definitions and 90 % of the sentences for training, 5 % each held out; with mentions."""
    return sense_corpus(DESCRIPTION)
