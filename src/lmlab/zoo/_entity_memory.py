"""Entities as Experts, Facts as Experts (entity memory): shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from torch import nn

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.core.entity_memory import HiddenMemory
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.memory_layers import EntityMemory
from lmlab.models.entity_memory import EntitiesAsExperts
from lmlab.objectives.entity_masking import EntityMaskingObjective
from lmlab.zoo import _transformer as parts
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, BERTEncoderConfig, make_sizes

EntityModelT = TypeVar("EntityModelT", bound=EntitiesAsExperts)


@dataclass(frozen=True, kw_only=True)
class EntityConfig(BERTEncoderConfig):
    """Settings of a masked language model with an entity memory."""

    layers: int = field(default=6, metadata={"at_least": 2})
    """Number of layers; the memory is between two of them."""
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
    # Short sentences with a small vocabulary, such as capitals-annotated.
    "capitals": {
        **TRANSFORMER_RECIPES["glosses"],
        "warmup_steps": 100,
        "tokens_per_batch": 1024,
        "epochs": 30,
    },
}

ENTITY_SIZES = make_sizes(
    EntityConfig,
    # Pre-norm, which trains at the test suite's learning rate.
    tiny={"width": 12, "pre_norm": True},
    small={"width": 128},
    base={"entity_width": 256},
)


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


def make_entity_model(
    kind: type[EntityModelT],
    config: EntityConfig,
    vocabulary: Vocabulary,
    knowledge: KnowledgeBase,
    entities: nn.Embedding,
    final_memory: HiddenMemory,
) -> EntityModelT:
    """A model with an entity memory; `final_memory` is queried after the last layer."""
    tokens = parts.make_token_embedding(config, vocabulary)
    frame = (vocabulary.pad, vocabulary.start, vocabulary.end)
    memory = EntityMemory(
        entities,
        config.width,
        norm=parts.make_norm(config),
        top_k=config.top_k,
        special=[token for token in frame if token is not None],
    )
    backbone = MemoryTransformer(
        parts.make_embedding(config, tokens),
        parts.make_stack(config),
        {config.memory_layer: memory, config.layers: final_memory},
        width=config.width,
    )
    parts.initialised(config, backbone)
    initialise_entity_norms(memory, final_memory)
    return kind(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=parts.make_softmax(config, vocabulary, tokens, bias=True, head=True),
        objective=EntityMaskingObjective(
            vocabulary, rate=config.rate, mention_rate=config.mention_rate
        ),
        knowledge=knowledge,
        memory=config.memory_layer,
        last=config.layers,
    )
