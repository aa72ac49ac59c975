"""GloVe: word vectors by weighted least squares on the logarithms of co-occurrence counts.

    J = Σ_ij f(X_ij) (w_i · w̃_j + b_i + b̃_j - log X_ij)²,   f(x) = min(1, (x / x_max)^α)

X_ij sums 1/d over all pairs of the words i and j that are d ≤ window words apart in a sentence. The
vector of a word is w + w̃. It is no distribution over texts, so it can't score, fill or sample;
`lmlab words` works with it. Counts beyond `memory_mb` are sorted on disk. AdaGrad sums the
gradients of a few thousand pairs, where the authors' code goes pair by pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.glove import CooccurrenceOptions, GloVe

CARD = Card(
    family="words",
    kind="unnormalised",
    paper="Pennington et al. 2014, GloVe: Global Vectors for Word Representation",
    source="004 §1.2.2",
    protocols=("Vectors",),
    fitting="cooccurrence",
    objectives=("weighted-least-squares",),
    corpus="wordnet",
    example_commands=("lmlab words RUN nearest dog", "lmlab words RUN analogy year years day"),
    oracle="counts, loss and a step by arithmetic, the minimum by alternating least squares: "
    "tests/parity/test_glove.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(CooccurrenceOptions):
    """Settings of GloVe."""

    width: int = field(default=100, metadata={"at_least": 1})
    """Size of word vectors."""
    x_max: float = field(default=100.0, metadata={"above": 0})
    """Count from which on all pairs weigh the same."""
    alpha: float = field(default=0.75, metadata={"at_least": 0})
    """Exponent of the weight of rarer pairs."""


SIZES = {
    "tiny": Config(width=8, window=2, x_max=10.0, pairs_per_step=16),
    "small": Config(),
    "base": Config(width=300),
}
RECIPES = {"default": {"learning_rate": 0.05, "schedule": "constant", "min_count": 5, "epochs": 25}}


def build(config: Config, vocabulary: Vocabulary) -> GloVe:
    return GloVe(vocabulary, config.width, x_max=config.x_max, alpha=config.alpha, counting=config)
