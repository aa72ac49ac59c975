"""CBOW (word2vec): the averaged context words predict the centre word by negative sampling.

    loss = -log σ(o_w · h) - Σ_{i=1..k} log σ(-o_{v_i} · h),   h = mean_j x_j,   v_i ~ counts^0.75

Each word has an input vector x, which is the word vector, and an output vector o. The implied
distribution is p(w | context) ∝ q(w) exp(o_w · h), q the noise, which negative sampling fits, so a
text has a pseudo-log-likelihood. `context=product` takes Π_j σ(o · x_j) for σ(o · h). As in
word2vec and gensim each x_j gets the undivided gradient of the mean; with `whole_gradient=false`
its share, the true gradient, which needs twice the learning rate (İrsoy et al. 2021).
`--recipe softmax` trains by the full softmax, p(w | context) ∝ exp(o_w · h), or with
`context=product` Π_j p(w | x_j); `max_norm` limits the length of all vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.word2vec_emission import PooledContext, SigmoidProduct, SoftmaxProduct
from lmlab.models.word2vec import Word2Vec
from lmlab.zoo import _word2vec as parts

CARD = Card(
    family="words",
    kind="pseudo",
    paper="Mikolov et al. 2013, Efficient Estimation of Word Representations in Vector Space",
    source="002 §3.4.2",
    aliases=("word2vec",),
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
    """Settings of CBOW."""

    context: Literal["mean", "sum", "product"] = "mean"
    """Combination of context words: mean or sum of vectors, or product of sigmoids (softmaxes)."""
    whole_gradient: bool = True
    """Give each context word the undivided gradient of the mean, as word2vec does."""


SIZES = parts.make_word2vec_sizes(Config)
RECIPES = {
    **parts.WORD2VEC_RECIPES,
    "default": {**parts.WORD2VEC_RECIPES["default"], "learning_rate": 0.05},
}


def build(config: Config, vocabulary: Vocabulary) -> Word2Vec:
    if config.context == "product":
        product = SoftmaxProduct() if config.objective == "softmax" else SigmoidProduct()
        return parts.build_word2vec(config, vocabulary, product)
    combination = PooledContext(
        mean=config.context == "mean", undivided_gradient=config.whole_gradient
    )
    return parts.build_word2vec(config, vocabulary, combination)
