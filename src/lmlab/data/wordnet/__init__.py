"""WordNet 3.0: its glosses as a corpus, its synsets, lemmas and relations as a knowledge base.

`wordnet.gz` was made from Princeton's files by `scripts/build_wordnet.py`; Princeton University's
licence, which must accompany every copy, is in `LICENSE` in the same folder.

    from lmlab.data.wordnet import load_wordnet

    dog = load_wordnet().find("dog", "n")[0]
    dog.definition, dog.related("hypernym")
"""

from __future__ import annotations

from lmlab.data.corpus import Corpus
from lmlab.data.wordnet.database import WordNet, load_wordnet
from lmlab.data.wordnet.glosses import gloss_corpus
from lmlab.data.wordnet.synsets import Relation, Sense, Synset

__all__ = ["DESCRIPTION", "Relation", "Sense", "Synset", "WordNet", "corpus", "load_wordnet"]

DESCRIPTION = "definitions and example sentences of WordNet 3.0, lower case, tokenised"


def corpus() -> Corpus:
    """Definitions and examples of WordNet, split by synset; loaded lazily."""
    return gloss_corpus(DESCRIPTION)
