"""Neural probabilistic context-free grammar: a sentence is what a random tree has at its leaves.

    p(s) = Σ_trees P(root → A) Π_nodes P(A → B C) Π_leaves P(A → s_i)

Summed exactly by the inside algorithm, at a cost of T³ for a sentence of T words; sentences of more
than `longest` words are refused. Scores by token are ratios of prefix probabilities (Jelinek and
Lafferty 1991), so that text that is cut off has a probability too: that of all sentences beginning
so. An empty sentence has a rule of its own. Trees that never end would be mass that no sentence
has; the grammar may learn such rules, and the mass then stays with the unfinished prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.neural_pcfg import NeuralPCFG
from lmlab.models.pcfg import PCFG

CARD = Card(
    family="latent",
    kind="exact",
    paper="Kim et al. 2019 (Compound Probabilistic Context-Free Grammars); Baker 1979 (inside)",
    source="001",
    protocols=("LogProb", "Sample"),
    oracle="sums over all trees of at most six words: tests/parity/test_pcfg.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the grammar."""

    nonterminals: int = field(default=12, metadata={"at_least": 1})
    """N, symbols of inner nodes."""
    preterminals: int = field(default=24, metadata={"at_least": 1})
    """P, symbols of leaves."""
    width: int = field(default=64, metadata={"at_least": 1})
    """Numbers in the vector of a symbol."""
    longest: int = field(default=60, metadata={"at_least": 1})
    """Most words of a sentence; memory grows with their square, time with their cube."""


SIZES = {
    "tiny": Config(nonterminals=3, preterminals=4, width=16),
    "small": Config(),
    "base": Config(nonterminals=30, preterminals=60, width=256, longest=40),
}


def build(config: Config, vocabulary: Vocabulary) -> PCFG:
    grammar = NeuralPCFG(config.nonterminals, config.preterminals, config.width, vocabulary)
    return PCFG(grammar, vocabulary, longest=config.longest)
