"""WordNet 3.0: definitions and examples as a corpus; database of synsets, senses and relations.

`wordnet.gz` was made from Princeton's files by `scripts/build_wordnet.py`; Princeton University's
licence, which must accompany every copy, is in `LICENSE` in the same folder.

    from lmlab.data.wordnet import load_wordnet

    dog = load_wordnet().find("dog", "n")[0]
    dog.definition, dog.related("hypernym")
"""

from __future__ import annotations

from lmlab.data.corpus import Corpus
from lmlab.data.readers import Example
from lmlab.data.wordnet.database import WordNet, load_wordnet
from lmlab.data.wordnet.glosses import VERSION, texts_by_split, wordnet_corpus
from lmlab.data.wordnet.synsets import Relation, Sense, Synset

__all__ = ["DESCRIPTION", "Relation", "Sense", "Synset", "WordNet", "corpus", "load_wordnet"]

DESCRIPTION = "definitions and example sentences of WordNet 3.0, lower case, tokenised"


def corpus() -> Corpus:
    """Definitions and examples of WordNet, split by synset; loaded lazily.

    More than a third of the words occur once in 1.5 million, so words seen once in training are
    <unk> by default.
    """
    return wordnet_corpus(
        "wordnet",
        lambda split: map(Example, texts_by_split()[split]),
        version=VERSION,
        min_count=2,
        description=DESCRIPTION,
    )
