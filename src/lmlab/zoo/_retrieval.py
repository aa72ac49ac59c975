"""What the systems that look documents up share: their settings and their encoders."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from lmlab.backbones.text_encoder import PooledTextEncoder, TextPooling
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo._transformer import TransformerConfig, make_token_embedding, make_transformer


@dataclass(frozen=True, kw_only=True)
class RetrieverConfig(TransformerConfig):
    """Settings of a system with an encoder of questions and one of documents."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Numbers in a hidden state."""
    layers: int = field(default=2, metadata={"at_least": 1})
    """Blocks stacked on each other."""
    length: int = field(default=128, metadata={"at_least": 4})
    """The longest input that it takes at once; longer documents are cut."""
    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """What norms add to the variance."""
    vector_width: int = field(default=128, metadata={"at_least": 0})
    """Numbers in the vector of a text; 0 for width, without a projection."""
    pooling: TextPooling = "mean"
    """first: the hidden state of place 0, as the papers have it, whose encoders were trained
    before; mean: that of all places, which learns sooner from nothing."""
    shared_encoders: Literal["all", "tokens", "nothing"] = "all"
    """What the two encoders have in common: all but their projections, the tokens' vectors, or
    nothing."""
    vector_norm: float = field(default=0.0, metadata={"at_least": 0})
    """The length that vectors are brought to, so that a score is its square times a cosine; 0
    leaves them as they are."""

    inherited_from_base: ClassVar[frozenset[str]]
    """Settings that are the base's where none are given: its weights are copied, so they must have
    the same shapes, and mean the same."""


RetrieverConfig.inherited_from_base = frozenset(spec.name for spec in fields(RetrieverConfig))

TINY: dict[str, Any] = {
    "width": 12,
    "layers": 1,
    "heads": 2,
    "vector_width": 8,
    "pre_norm": True,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
"""What tests build."""
RETRIEVER_RECIPES = {
    # WordNet's examples and glosses: benchmarks/dpr.py has what it reaches.
    "glosses": {
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 200,
        "tokens_per_batch": 8192,
        "weight_decay": 0.01,
        "grad_clip": 1.0,
    },
}


def make_encoders(
    config: RetrieverConfig, vocabulary: Vocabulary
) -> tuple[PooledTextEncoder, PooledTextEncoder]:
    """That of questions and that of documents."""
    tokens = make_token_embedding(config, vocabulary)
    other = (
        tokens if config.shared_encoders == "tokens" else make_token_embedding(config, vocabulary)
    )
    first = make_transformer(config, tokens)
    second = first if config.shared_encoders == "all" else make_transformer(config, other)
    questions, documents = (
        PooledTextEncoder(
            backbone,
            width=config.vector_width,
            pooling=config.pooling,
            length=config.vector_norm,
        )
        for backbone in (first, second)
    )
    if questions.projection is not None and documents.projection is not None:
        # Begun alike, so that texts with the same words are near each other from the first step.
        documents.projection.load_state_dict(questions.projection.state_dict())
    return questions, documents
