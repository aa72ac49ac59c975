"""Entity memory models (EaE, FaE): shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.core.errors import UserError
from lmlab.core.hidden_memory import HiddenMemory
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.memory_layers import EntityMemory, EntityPrediction, FactMemory
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.entity_memory import EntitiesAsExperts, FactsAsExperts
from lmlab.objectives.entity_masking import EntityMaskingObjective
from lmlab.objectives.masking.token_masking import require_mask_token
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    TransformerConfig,
    make_embedding,
    make_norm,
    make_softmax,
    make_stack,
    make_token_embedding,
)


@dataclass(frozen=True, kw_only=True)
class EntityConfig(TransformerConfig):
    """Settings of a masked language model with an entity memory."""

    layers: int = field(default=6, metadata={"at_least": 2})
    """Number of layers; the memory is between two of them."""
    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    embedding_norm: bool = True
    """Whether to normalise the embedding output."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""
    memory_after: int = field(default=0, metadata={"at_least": 0})
    """Layer after which the entity memory is queried; 0 for a third of them (4 of 12)."""
    entity_width: int = field(default=0, metadata={"at_least": 0})
    """Size of entity embeddings; 0 for width."""
    top_k: int = field(default=100, metadata={"at_least": 1})
    """Top-k entities (and facts) that a mention retrieves at inference; all in training."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate of tokens outside mentions."""
    mention_rate: float = field(default=0.2, metadata={"at_least": 0, "below": 1})
    """Share of the mentions that are masked as a whole."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_after and self.memory_after >= self.layers:
            raise UserError(
                f"memory_after must be below the number of layers ({self.layers}), got "
                f"{self.memory_after}."
            )

    @property
    def memory_layer(self) -> int:
        """Layer after which the entity memory is queried."""
        return self.memory_after or max(1, self.layers // 3)


ENTITY_RECIPES = {
    **TRANSFORMER_RECIPES,
    # Short sentences with a small vocabulary, such as capitals-told.
    "capitals": {
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 1024,
        "weight_decay": 0.01,
        "grad_clip": 1.0,
        "epochs": 30,
    },
}


def build_eae(
    config: EntityConfig, vocabulary: Vocabulary, knowledge: KnowledgeBase
) -> EntitiesAsExperts:
    """Entities as Experts: encoder with entity memory, entity prediction after the last layer."""
    entities = make_entity_embedding(config, knowledge)
    return EntitiesAsExperts(
        **make_parts(
            config, vocabulary, knowledge, entities, EntityPrediction(entities, config.width)
        )
    )


def build_fae(
    config: EntityConfig, vocabulary: Vocabulary, knowledge: KnowledgeBase
) -> FactsAsExperts:
    """Facts as Experts: EaE with a fact memory after the last layer."""
    if not knowledge.facts:
        raise UserError("a fact memory needs knowledge with facts, and this has none.")
    entities = make_entity_embedding(config, knowledge)
    facts = FactMemory(
        entities,
        len(knowledge.relations),
        knowledge.objects,
        config.width,
        mask=require_mask_token(vocabulary),
        nearest=config.top_k,
    )
    return FactsAsExperts(**make_parts(config, vocabulary, knowledge, entities, facts))


def make_entity_embedding(config: EntityConfig, knowledge: KnowledgeBase) -> nn.Embedding:
    return nn.Embedding(len(knowledge.entities), config.entity_width or config.width)


def initialise_entity_norms(*memories: HiddenMemory) -> None:
    """Initialise entity and relation embeddings to a norm of about 4.

    Entries of a normalised hidden state have unit scale. Embeddings at a Transformer's usual
    initial scale would be negligible next to it and give nearly uniform attention.
    """
    for memory in memories:
        for name in ("entities", "relations"):
            if isinstance(table := getattr(memory, name, None), nn.Embedding):
                nn.init.normal_(table.weight, std=4 / table.embedding_dim**0.5)


def make_parts(
    config: EntityConfig,
    vocabulary: Vocabulary,
    knowledge: KnowledgeBase,
    entities: nn.Embedding,
    last: HiddenMemory,
) -> dict[str, Any]:
    """Constructor arguments of such a system; `last` is queried after the last layer."""
    tokens = make_token_embedding(config, vocabulary)
    frame = (vocabulary.pad, vocabulary.start, vocabulary.end)
    memory = EntityMemory(
        entities,
        config.width,
        norm=make_norm(config),
        nearest=config.top_k,
        special=[token for token in frame if token is not None],
    )
    backbone = MemoryTransformer(
        make_embedding(config, tokens),
        make_stack(config),
        {config.memory_layer: memory, config.layers: last},
        width=config.width,
    )
    init_transformer_weights(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    initialise_entity_norms(memory, last)
    return {
        "vocabulary": vocabulary,
        "backbone": backbone,
        "emission": make_softmax(config, vocabulary, tokens, bias=True, head=True),
        "objective": EntityMaskingObjective(
            vocabulary, rate=config.rate, mention_rate=config.mention_rate
        ),
        "knowledge": knowledge,
        "memory": config.memory_layer,
        "last": config.layers,
    }
