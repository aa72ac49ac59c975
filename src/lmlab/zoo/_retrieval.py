"""Dense retrievers (DPR, REALM): shared settings; question and document encoders."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lmlab.backbones.sentence_encoders import PooledTextEncoder, TextPooling
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo._transformer import make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, BERTEncoderConfig


@dataclass(frozen=True, kw_only=True)
class RetrieverConfig(BERTEncoderConfig):
    """Settings of a bi-encoder: a question encoder and a document encoder."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Hidden size."""
    layers: int = field(default=2, metadata={"at_least": 1})
    """Number of layers."""
    length: int = field(default=128, metadata={"at_least": 4})
    """Maximum input length in tokens; longer documents are truncated."""
    vector_width: int = field(default=128, metadata={"at_least": 0})
    """Size of text vectors; 0 for width, without a projection."""
    pooling: TextPooling = "mean"
    """first: hidden state of position 0 (CLS), as in the papers, with pre-trained encoders; mean:
    mean over positions, which learns faster from scratch."""
    shared_encoders: Literal["all", "tokens", "nothing"] = "all"
    """What the encoders share: all but their projections, the token embeddings, or nothing."""
    vector_norm: float = field(default=0.0, metadata={"at_least": 0})
    """Norm that vectors are scaled to, so that a score is its square times the cosine; 0 for no
    scaling."""

    @property
    def inherited_from_base(self) -> frozenset[str]:
        """Settings that default to the base's, since its weights are copied."""
        return frozenset(spec.name for spec in fields(RetrieverConfig))


RETRIEVER_TINY: dict[str, Any] = {
    "width": 12,
    "layers": 1,
    "heads": 2,
    "vector_width": 8,
    "pre_norm": True,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
"""Size for tests."""
# WordNet's examples and glosses; results in benchmarks/dpr.py.
RETRIEVER_RECIPES = {"glosses": {**TRANSFORMER_RECIPES["glosses"], "tokens_per_batch": 8192}}


def make_encoders(
    config: RetrieverConfig, vocabulary: Vocabulary
) -> tuple[PooledTextEncoder, PooledTextEncoder]:
    """Question encoder and document encoder."""
    question_tokens = document_tokens = make_token_embedding(config, vocabulary)
    if config.shared_encoders != "tokens":
        document_tokens = make_token_embedding(config, vocabulary)
    first = second = make_transformer(config, question_tokens)
    if config.shared_encoders != "all":
        second = make_transformer(config, document_tokens)
    questions, documents = (
        PooledTextEncoder(
            backbone, width=config.vector_width, pooling=config.pooling, length=config.vector_norm
        )
        for backbone in (first, second)
    )
    if questions.projection is not None and documents.projection is not None:
        # Equal initialisation, so that texts with the same words are close from the first step.
        documents.projection.load_state_dict(questions.projection.state_dict())
    return questions, documents
