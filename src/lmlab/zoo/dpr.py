"""DPR (dense passage retrieval): bi-encoder of questions and documents with in-batch negatives.

    loss = -Σ_i log softmax_j(q(x_i) · d(z_j))_i

The condition of a text is the question, the text is the document that answers it: `lmlab train dpr
--data wordnet-examples`. Texts without a condition are cut into a question and a document, the
inverse cloze task of Lee et al. 2019. Its score is that of a document given a question, up to a
constant; it is no distribution over texts. Documents with the same words are not negatives of each
other. `hard_negatives=1` adds the best wrong document by BM25 for each question, as in the paper.
`--base` is a run for initialisation, whose sizes are the defaults: a dpr, as `lmlab import-hf`
makes of a sentence encoder, or a bidirectional Transformer (the paper's is BERT).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.dual_encoder import DualEncoder, initialise_encoders
from lmlab.objectives.inverse_cloze import InverseClozeTask
from lmlab.retrieval.bm25 import BM25Negatives
from lmlab.zoo._retrieval import RETRIEVER_RECIPES, RETRIEVER_TINY, RetrieverConfig, make_encoders

CARD = Card(
    family="retrieval",
    kind="unnormalised",
    paper="Karpukhin et al. 2020, Dense Passage Retrieval; Lee et al. 2019 (inverse cloze)",
    source="004 §1.3.2",
    protocols=("LogProb", "Encode", "EncodeQueries"),
    objectives=("in-batch",),
    needs=("base",),
    initialised_by_own_runs=True,
    conditional=True,
    corpus="wordnet-examples",
    baseline="chance",
    exempt={
        "distribution": "it scores documents for a question, and not texts by their tokens",
        "sample": "it can't sample a text",
        "masked-inputs": "it predicts no token: a text is scored as a whole",
    },
    oracle="the softmax over a batch by loops and by hand: tests/parity/test_dpr.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(RetrieverConfig):
    """Settings of DPR."""

    keep_rate: float = field(default=0.1, metadata={"at_least": 0, "at_most": 1})
    """Inverse cloze task: probability that the question also stays in its document."""
    hard_negatives: int = field(default=0, metadata={"at_least": 0})
    """BM25 hard negatives per question, from the training split; 1 in the paper."""


SIZES = {
    "tiny": Config(**RETRIEVER_TINY),
    "small": Config(),
    "base": Config(
        width=768, layers=12, heads=12, length=512, vector_width=0, shared_encoders="nothing"
    ),
}
RECIPES = RETRIEVER_RECIPES


def build(config: Config, vocabulary: Vocabulary, *, base: System | None = None) -> DualEncoder:
    questions, documents = make_encoders(config, vocabulary)
    if base is not None:
        initialise_encoders(questions, documents, base)
    cloze = InverseClozeTask(vocabulary=vocabulary, keep_rate=config.keep_rate)
    count = config.hard_negatives
    return DualEncoder(
        vocabulary=vocabulary,
        questions=questions,
        documents=documents,
        cloze=cloze,
        length=config.length,
        negatives=BM25Negatives(vocabulary, count=count) if count else None,
    )
