"""RAG-Token: retrieval-augmented generation, a latent document for each output token.

    p(y | x) = Π_t Σ_{z ∈ top-k} p(z | x) p(y_t | x, z, y_<t),  p(z | x) ∝ exp(d(z) · q(x))

d is fixed, q and the generator are trained together. `--base` is a trained bi-encoder (the paper's
is DPR); without one, documents and questions are bags of words by random projection. p(z | x) is
normalised over the k retrieved documents. Any decoding strategy applies.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.rag import RAG
from lmlab.objectives.document_marginalisation import RAGTokenMarginal
from lmlab.retrieval.documents import Documents
from lmlab.zoo._rag import RAG_SIZES, RagConfig, make_rag
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES

CARD = Card(
    family="retrieval",
    kind="exact",
    paper="Lewis et al. 2020, Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks",
    source="004 §1.3.2",
    protocols=("LogProb", "Step", "Encode", "EncodeQueries", "Retrieve", "Ask"),
    needs=("base", "documents"),
    conditional=True,
    corpus="capitals-questions",
    oracle="transformers' RagTokenForGeneration, and sums by hand: tests/parity/test_rag.py",
)

Config = RagConfig
SIZES = RAG_SIZES
RECIPES = TRANSFORMER_RECIPES


def build(
    config: Config, vocabulary: Vocabulary, *, documents: Documents, base: System | None = None
) -> RAG:
    return make_rag(config, vocabulary, documents, base, RAGTokenMarginal())
