"""Neural probabilistic context-free grammar (PCFG), summed over trees by the inside algorithm.

    p(s) = Σ_trees P(root → A) Π_nodes P(A → B C) Π_leaves P(A → s_i)

Exact at a cost of T³ for a sentence of T words; `max_length` is the longest accepted, in words.
Token scores are ratios of prefix probabilities (Jelinek and Lafferty 1991), so truncated text has a
probability too: that of all sentences with this prefix. The empty sentence has its own rule. The
grammar can be inconsistent: mass of infinite trees then stays with unfinished prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.pcfg import PCFG, NeuralPCFG

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
    """N, nonterminals."""
    preterminals: int = field(default=24, metadata={"at_least": 1})
    """P, preterminals."""
    width: int = field(default=64, metadata={"at_least": 1})
    """Size of symbol vectors."""
    max_length: int = field(default=60, metadata={"at_least": 1})
    """Maximum words of a sentence T; memory is O(T²), time O(T³)."""


SIZES = {
    "tiny": Config(nonterminals=3, preterminals=4, width=16),
    "small": Config(),
    "base": Config(nonterminals=30, preterminals=60, width=256, max_length=40),
}


def build(config: Config, vocabulary: Vocabulary) -> PCFG:
    grammar = NeuralPCFG(config.nonterminals, config.preterminals, config.width, vocabulary)
    return PCFG(grammar, vocabulary, max_length=config.max_length)
