"""n-gram model by counts, with interpolated modified Kneser-Ney smoothing.

    p(w | u) = max(c(uw) - D(c(uw)), 0) / c(u·)  +  γ(u) p(w | u'),   u' is u less its oldest word

Lower orders use continuation counts (distinct contexts of a word); D has one discount each for
counts of 1, 2 and 3 or more. Equal to KenLM's `lmplz`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.backbones.window import NgramContext
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.ngram_table import NgramTable
from lmlab.inference.backoff import MOST_ORDER
from lmlab.models.causal_lm import AutoregressiveLM, NgramModel
from lmlab.objectives.next_token import NextToken

CARD = Card(
    family="counting",
    kind="exact",
    paper="Kneser and Ney 1995; Chen and Goodman 1998; Heafield et al. 2013 (KenLM)",
    source="002 §3.4",
    aliases=("kneser-ney",),
    protocols=("LogProb", "Step", "Countable"),
    fitting="counting",
    oracle="KenLM's lmplz and its reader: tests/parity/test_kenlm.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the n-gram model."""

    order: int = field(default=5, metadata={"at_least": 1, "at_most": MOST_ORDER})
    """n, the order, predicted word included."""


SIZES = {"tiny": Config(order=3), "small": Config(order=5), "base": Config(order=5)}


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return NgramModel(
        vocabulary=vocabulary,
        backbone=NgramContext(config.order - 1),
        emission=NgramTable(config.order, vocabulary),
        objective=NextToken(),
        fitting="counting",
    )
