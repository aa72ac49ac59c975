"""Skip-gram word vectors: each word around a place, alone, tells its word from random words.

    loss = Σ_j [ -log σ(o_w · x_j) - Σ_{i=1..k} log σ(-o_{v_i} · x_j) ],   v_i ~ counts^0.75

Each word has a vector x as context, which is the word vector, and one, o, as the word asked for. As
a distribution p(w | x_j) ∝ q(w) exp(o_w · x_j), q the noise: what negative sampling fits; given all
words around it is the mean over j, so that a text has a pseudo-log-likelihood. `random_contexts`
draws R words of the whole window, as 002 tells it, in place of all words of a shrunk one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.word2vec_emission import EachContextWord
from lmlab.models.word2vec import Word2Vec
from lmlab.zoo._word2vec import (
    WORD2VEC_RECIPES,
    Word2VecConfig,
    build_word2vec,
)

CARD = Card(
    family="words",
    kind="pseudo",
    paper="Mikolov et al. 2013, Distributed Representations of Words and Phrases",
    source="002 §3.4.2",
    aliases=("skip-gram", "sgns"),
    protocols=("LogProb", "Fill", "Vectors"),
    fitting="words",
    objectives=("negative-sampling",),
    corpus="wordnet",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single words given those around, and no way to draw a text",
    },
    oracle="gensim's similarities on the same text: tests/parity/test_gensim.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(Word2VecConfig):
    """Settings of skip-gram."""

    random_contexts: int = field(default=0, metadata={"at_least": 0})
    """R, words drawn from the whole window for each word; 0 for all words of a shrunk window."""


SIZES = {
    "tiny": Config(width=8, window=2, sample=0.0),
    "small": Config(),
    "base": Config(width=300),
}
RECIPES = WORD2VEC_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Word2Vec:
    return build_word2vec(
        config, vocabulary, EachContextWord(), random_contexts=config.random_contexts
    )
