"""Skip-gram (word2vec) with negative sampling: each context word alone predicts the centre word.

    loss = Σ_j [ -log σ(o_w · x_j) - Σ_{i=1..k} log σ(-o_{v_i} · x_j) ],   v_i ~ counts^0.75

Each word has an input vector x, which is the word vector, and an output vector o. The implied
distribution is p(w | x_j) ∝ q(w) exp(o_w · x_j), q the noise, which negative sampling fits; given
all context words it is the mean over j, so a text has a pseudo-log-likelihood. `random_contexts`
samples R words of the full window instead of all words of a shrunk one. `--recipe softmax` trains
p(w | x_j) = softmax_w(o_w · x_j) by the full softmax; `max_norm` limits the length of all vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.word2vec_emission import EachContextWord
from lmlab.models.word2vec import Word2Vec
from lmlab.zoo import _word2vec as parts

CARD = Card(
    family="words",
    kind="pseudo",
    paper="Mikolov et al. 2013, Distributed Representations of Words and Phrases",
    source="002 §3.4.2",
    aliases=("skip-gram", "sgns"),
    protocols=("LogProb", "Fill", "Vectors"),
    fitting="words",
    objectives=("negative-sampling", "softmax"),
    corpus="wordnet",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single words given their context, and can't sample a text",
    },
    oracle="gensim's similarities on the same text: tests/parity/test_gensim.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.Word2VecConfig):
    """Settings of skip-gram."""

    random_contexts: int = field(default=0, metadata={"at_least": 0})
    """R, context words sampled from the full window; 0 for all words of a shrunk window."""


SIZES = parts.make_word2vec_sizes(Config)
RECIPES = parts.WORD2VEC_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Word2Vec:
    return parts.build_word2vec(
        config, vocabulary, EachContextWord(), random_contexts=config.random_contexts
    )
