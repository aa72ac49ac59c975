"""REALM: hidden words told from documents that are looked up, and the looking up learnt from it.

    p(y | x) = Σ_{z ∈ top-k} p(y | z, x) p(z | x),   p(z | x) ∝ exp(q(x) · d(z))

What is hidden are names (`salient`), the document that a text came from may not help it, and an
empty one may do as well. All documents are embedded anew every `refresh` steps, sooner at first and
before anything is kept, by default while training goes on (`background`). `--base` is a run of dpr
whose encoders it starts from (the paper's warm start is the inverse cloze task, which dpr learns
from single texts), or one of realm; its sizes are taken where none are given. With
`objective=spans` texts are answers to the question that each is given, words of the documents
found, whose vectors then stay as a masked base has them:
`lmlab train realm --data wordnet-questions --set objective=spans --base RUN`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.documents import Documents
from lmlab.retrieval.looking_up import LookingUp
from lmlab.zoo._realm import LARGE, TINY, RealmConfig, make_realm
from lmlab.zoo._retrieving import RETRIEVER_RECIPES

CARD = Card(
    family="retrieval",
    kind="pseudo",
    paper="Guu et al. 2020, REALM; Lee et al. 2019 (warm start)",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Encode", "EncodeQueries", "Retrieve", "Ask"),
    objectives=("masked", "spans"),
    needs=("base", "documents"),
    tries={"documents": "wordnet"},
    conditional=True,
    corpus="wordnet",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
        "source": "hidden words are those of single texts: only objective=spans is given questions",
    },
    oracle="the sum over all documents by loops, and its gradient: tests/parity/test_realm.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(RealmConfig):
    """Settings of REALM."""


SIZES = {"tiny": Config(**TINY), "small": Config(), "base": Config(**LARGE)}
RECIPES = RETRIEVER_RECIPES


def build(
    config: Config,
    vocabulary: Vocabulary,
    *,
    documents: Documents | None = None,
    base: System | None = None,
) -> LookingUp:
    return make_realm(config, vocabulary, documents, base)
